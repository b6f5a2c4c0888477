//! Places among what the worker's engine has in flight, divided as its time is: between groups, within a group between connections, within
//! a connection between queues. A queue may take all that are free. A group with less than its share gets places even if none is free: what
//! others have too many of they lose as it ends. At most twice as much is in flight as there are places, however many groups come one after
//! the other. Within a group nothing is given beyond the places: what ends goes to a connection with less than its share that waits, and
//! within a connection to such a queue.

use std::sync::Arc;

use crate::share::{Group, Share, Weight};

/// What a group has in flight at this worker.
#[derive(Debug)]
struct GroupEntry {
    /// None: no connection has this entry.
    group: Option<Arc<Group>>,
    connections: usize,
    /// As of `Places::counted_in`.
    in_flight: u32,
    /// Weights of its connections that had something in flight.
    weights: u64,
    waiting: Waiting,
}

/// What a connection has in flight at this worker.
#[derive(Debug)]
struct ConnectionEntry {
    group: usize,
    client: u64,
    weight: Arc<Weight>,
    /// 0: the entry is free.
    queues: usize,
    in_flight: u32,
    /// Queues with something in flight.
    busy: u32,
    waiting: Waiting,
    /// The last pass in which it was counted among those of its group that wait.
    counted_in: u64,
}

/// Of a group, connections that got no places; of a connection, queues.
#[derive(Debug, Default)]
struct Waiting {
    /// The last pass in which one with less than its share got none.
    lacks_in: u64,
    /// Weights of those with nothing in flight: in the last pass that had any, and in the one before.
    pass: u64,
    weights: [u64; 2],
}

impl Waiting {
    /// One with nothing in flight got none.
    const fn add(&mut self, pass: u64, weight: u64) {
        if self.pass != pass {
            self.weights = [0, if self.pass + 1 == pass { self.weights[0] } else { 0 }];
            self.pass = pass;
        }
        self.weights[0] += weight;
    }

    /// Weights of those that contend for places, of which so many have some, as one sees it that has so many in flight.
    fn contend(&self, pass: u64, weights: u64, weight: u64, in_flight: u32) -> u64 {
        let waiting = match pass - self.pass {
            0 => self.weights[0].max(self.weights[1]),
            1 => self.weights[0],
            _ => 0,
        };
        weights + if in_flight == 0 { waiting.max(weight) } else { waiting }
    }

    /// Is one to go first that has less than its share? What has nothing is not held back: no end of its own would have it looked at again.
    fn goes_first(&self, pass: u64, share: u64, in_flight: u32) -> bool {
        self.lacks_in + 1 >= pass && u64::from(in_flight) >= share.max(1)
    }
}

/// What a queue may take.
pub(super) struct Allowed {
    pub(super) places: u32,
    /// Have its connection and the queue itself less than their shares?
    lacks: [bool; 2],
}

#[derive(Debug)]
pub(super) struct Places {
    groups: Vec<GroupEntry>,
    connections: Vec<ConnectionEntry>,
    /// Weights of the groups that had something in flight.
    weights: u64,
    pass: u64,
    /// The last pass in which groups and weights were counted: one in which places are short.
    counted_in: u64,
}

impl Default for Places {
    fn default() -> Self {
        // So that pass 0, in which nothing was counted and none waited, is not the last one.
        Self { groups: Vec::new(), connections: Vec::new(), weights: 0, pass: 2, counted_in: 0 }
    }
}

fn part(of: u64, weight: u64, weights: u64) -> u64 {
    of * weight / weights.max(weight)
}

impl Places {
    /// A queue is added: which entry counts what it has in flight.
    pub(super) fn join(&mut self, share: &Share, client: u64) -> usize {
        let group = self.group(&share.group);
        let is_it = |entry: &ConnectionEntry| entry.queues > 0 && entry.client == client && entry.group == group;
        let found = self.connections.iter().position(is_it);
        let entry = found.unwrap_or_else(|| {
            self.groups[group].connections += 1;
            let weight = Arc::clone(&share.weight);
            let new = ConnectionEntry {
                group,
                client,
                weight,
                queues: 0,
                in_flight: 0,
                busy: 0,
                waiting: Waiting::default(),
                counted_in: 0,
            };
            let free = self.connections.iter().position(|entry| entry.queues == 0);
            let at = free.unwrap_or(self.connections.len());
            if at == self.connections.len() {
                self.connections.push(new);
            } else {
                self.connections[at] = new;
            }
            at
        });
        self.connections[entry].queues += 1;
        entry
    }

    fn group(&mut self, group: &Arc<Group>) -> usize {
        let is_it = |entry: &GroupEntry| entry.group.as_ref().is_some_and(|other| Arc::ptr_eq(other, group));
        let found = self.groups.iter().position(is_it);
        let at = found.or_else(|| self.groups.iter().position(|entry| entry.group.is_none())).unwrap_or_else(|| {
            self.groups.push(GroupEntry { group: None, connections: 0, in_flight: 0, weights: 0, waiting: Waiting::default() });
            self.groups.len() - 1
        });
        self.groups[at].group.get_or_insert_with(|| Arc::clone(group));
        at
    }

    /// A queue is gone, with what it has in flight.
    pub(super) fn leave(&mut self, entry: usize, in_flight: u32) {
        self.count(entry, in_flight, 0);
        let connection = &mut self.connections[entry];
        connection.queues -= 1;
        if connection.queues == 0 {
            let group = &mut self.groups[connection.group];
            group.connections -= 1;
            if group.connections == 0 {
                group.group = None;
            }
        }
    }

    /// A queue that had so much in flight has this much now.
    #[inline(always)]
    pub(super) fn count(&mut self, entry: usize, before: u32, now: u32) {
        let connection = &mut self.connections[entry];
        connection.in_flight = (connection.in_flight - before) + now;
        connection.busy = (connection.busy - u32::from(before > 0)) + u32::from(now > 0);
        if self.counted_in == self.pass {
            let group = &mut self.groups[connection.group];
            group.in_flight = (group.in_flight - before) + now;
        }
    }

    pub(super) const fn begin_pass(&mut self) {
        self.pass += 1;
    }

    fn count_groups(&mut self) {
        for group in &mut self.groups {
            (group.in_flight, group.weights) = (0, 0);
        }
        for connection in self.connections.iter().filter(|connection| connection.in_flight > 0) {
            let group = &mut self.groups[connection.group];
            group.in_flight += connection.in_flight;
            group.weights += u64::from(connection.weight.get());
        }
        let busy = self.groups.iter().filter(|group| group.in_flight > 0);
        self.weights = busy.map(|entry| entry.group.as_ref().map_or(0, |group| group.weight.get().into())).sum();
        self.counted_in = self.pass;
    }

    /// How many places a queue may take that has so many, of `all`, of which so many are taken.
    #[inline(never)]
    pub(super) fn allows(&mut self, entry: usize, has: u32, taken: u32, all: u32) -> Allowed {
        if self.counted_in != self.pass {
            self.count_groups();
        }
        let pass = self.pass;
        let connection = &self.connections[entry];
        let group = &self.groups[connection.group];
        let weight = group.group.as_ref().map_or(1, |group| group.weight.get().into());
        let weights = self.weights + if group.in_flight == 0 { weight } else { 0 };
        let of_group = part(all.into(), weight, weights).max(1);
        let weight = connection.weight.get().into();
        let of_connection = part(of_group, weight, group.waiting.contend(pass, group.weights, weight, connection.in_flight));
        let of_queue = part(of_connection, 1, connection.waiting.contend(pass, connection.busy.into(), 1, has));

        let gives_way = group.waiting.goes_first(pass, of_connection, connection.in_flight)
            || connection.waiting.goes_first(pass, of_queue, has);
        let lacks = u32::try_from(of_group.saturating_sub(group.in_flight.into())).unwrap_or(all);
        let places = all.saturating_sub(taken).max(lacks.min((2 * all).saturating_sub(taken)));
        Allowed {
            places: if gives_way { 0 } else { places },
            lacks: [u64::from(connection.in_flight) < of_connection, u64::from(has) < of_queue],
        }
    }

    /// A queue with requests that has so many places got none: what others of its group and connection have too many of goes to it as it
    /// ends.
    pub(super) fn refused(&mut self, entry: usize, has: u32, allowed: &Allowed) {
        let pass = self.pass;
        let connection = &mut self.connections[entry];
        let group = &mut self.groups[connection.group];
        if allowed.lacks[0] {
            group.waiting.lacks_in = pass;
        }
        if allowed.lacks[1] {
            connection.waiting.lacks_in = pass;
        }
        if connection.in_flight == 0 && connection.counted_in != pass {
            connection.counted_in = pass;
            group.waiting.add(pass, connection.weight.get().into());
        }
        if has == 0 {
            connection.waiting.add(pass, 1);
        }
    }
}
