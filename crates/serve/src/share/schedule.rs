//! Deficit round robin over three levels: groups, their connections, their queues.
//!
//! In a pass every queue is visited at most once, and only while its connection's and its group's credit last, of which a pass takes no
//! more than the usual quantum: one of a great weight gets its share in several passes, and the others wait no longer. A round of a level is over
//! when each of its nodes has spent its credit or was found without work since the round began; then each gets a quantum. What a visit
//! takes beyond the credit is owed. What is not spent is lost.

use std::sync::Arc;

use super::{DEFAULT_WEIGHT, Group, QUANTUM, Share, Weight};

/// What came of visiting a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visited {
    /// Cost units; 0: it had no work.
    pub(crate) units: u32,
    /// Is it to be visited again?
    pub(crate) stays: bool,
}

/// What a node may still spend.
#[derive(Debug)]
struct Account {
    credit: i64,
    /// The round of the level in which the credit was given.
    round: u64,
    /// The last round in which it was found without work.
    empty_in: u64,
}

impl Account {
    const fn new(round: u64, quantum: i64) -> Self {
        Self { credit: quantum, round, empty_in: u64::MAX }
    }

    /// What it may spend in this round.
    #[inline(always)]
    fn credit_in(&mut self, round: u64, quantum: impl FnOnce() -> i64) -> i64 {
        if self.round != round {
            let rounds = i64::try_from(round - self.round).unwrap_or(i64::MAX);
            let quantum = quantum();
            self.credit = self.credit.saturating_add(quantum.saturating_mul(rounds)).min(quantum);
            self.round = round;
        }
        self.credit
    }

    /// After how many rounds it has credit again.
    const fn rounds_to_wait(&self, quantum: i64) -> u64 {
        (-self.credit / quantum + 1).unsigned_abs()
    }
}

trait Node {
    fn account(&mut self) -> &mut Account;

    /// What it gets in a round.
    fn quantum(&self) -> i64;

    /// Spend about so many units; returns those spent. `false`: nothing is left of it.
    fn turn(&mut self, most: i64, visit: &mut impl FnMut(u32) -> Visited) -> (i64, bool);
}

#[derive(Debug)]
struct Level<N> {
    nodes: Vec<N>,
    /// Whose turn is next.
    next: usize,
    round: u64,
}

impl<N> Default for Level<N> {
    fn default() -> Self {
        Self { nodes: Vec::new(), next: 0, round: 0 }
    }
}

impl<N: Node> Level<N> {
    /// Give each node a turn that has credit, until `most` units are spent; returns how many were.
    #[inline(always)]
    fn turns(&mut self, most: i64, visit: &mut impl FnMut(u32) -> Visited) -> i64 {
        let [node] = &mut self.nodes[..] else { return self.turns_of_several(most, visit) };
        let (units, stays) = node.turn(most.min(QUANTUM.into()), visit);
        if !stays {
            self.nodes.clear();
        }
        units
    }

    fn turns_of_several(&mut self, most: i64, visit: &mut impl FnMut(u32) -> Visited) -> i64 {
        loop {
            let (mut spent, mut wait, mut goes_on, mut last) = (0, None::<u64>, false, None);
            for _ in 0..self.nodes.len() {
                let at = if self.next < self.nodes.len() { self.next } else { 0 };
                let round = self.round;
                let Some(node) = self.nodes.get_mut(at) else { break };
                self.next = at + 1;
                let quantum = node.quantum();
                let credit = node.account().credit_in(round, || quantum);
                let mut has_work = false;
                if credit > 0 {
                    let (units, stays) = node.turn(credit.min(most - spent).min(QUANTUM.into()), visit);
                    spent += units;
                    if !stays {
                        self.nodes.remove(at);
                        self.next = at;
                        continue;
                    }
                    has_work = units > 0;
                    if has_work {
                        last = Some(at);
                    }
                    let account = node.account();
                    account.credit -= units;
                    if !has_work {
                        account.empty_in = round;
                    }
                }
                let account = node.account();
                if account.credit <= 0 {
                    let rounds = account.rounds_to_wait(quantum);
                    wait = Some(wait.map_or(rounds, |fewest| fewest.min(rounds)));
                } else {
                    goes_on |= has_work && account.empty_in != round;
                }
                if spent >= most {
                    return spent;
                }
            }
            // The one after the last that got something: a limit that they have together may permit one of them something at a time.
            self.next = last.map_or(self.next, |at| at + 1);
            match wait {
                Some(rounds) if !goes_on => self.round += rounds,
                _ => return spent,
            }
            if spent > 0 {
                return spent;
            }
        }
    }
}

#[derive(Debug)]
struct QueueNode {
    account: Account,
    id: u32,
}

impl Node for QueueNode {
    fn account(&mut self) -> &mut Account {
        &mut self.account
    }

    fn quantum(&self) -> i64 {
        i64::from(QUANTUM)
    }

    #[inline(always)]
    fn turn(&mut self, _most: i64, visit: &mut impl FnMut(u32) -> Visited) -> (i64, bool) {
        let Visited { units, stays } = visit(self.id);
        (units.into(), stays)
    }
}

#[derive(Debug)]
struct ConnectionNode {
    account: Account,
    client: u64,
    weight: Arc<Weight>,
    queues: Level<QueueNode>,
}

impl Node for ConnectionNode {
    fn account(&mut self) -> &mut Account {
        &mut self.account
    }

    fn quantum(&self) -> i64 {
        quantum_of(&self.weight)
    }

    #[inline(always)]
    fn turn(&mut self, most: i64, visit: &mut impl FnMut(u32) -> Visited) -> (i64, bool) {
        let units = self.queues.turns(most, visit);
        (units, !self.queues.nodes.is_empty())
    }
}

#[derive(Debug)]
struct GroupNode {
    account: Account,
    group: Arc<Group>,
    connections: Level<ConnectionNode>,
}

fn quantum_of(weight: &Weight) -> i64 {
    (i64::from(QUANTUM) * i64::from(weight.get()) / i64::from(DEFAULT_WEIGHT)).max(1)
}

impl Node for GroupNode {
    fn account(&mut self) -> &mut Account {
        &mut self.account
    }

    fn quantum(&self) -> i64 {
        quantum_of(&self.group.weight)
    }

    fn turn(&mut self, most: i64, visit: &mut impl FnMut(u32) -> Visited) -> (i64, bool) {
        let units = self.connections.turns(most, visit);
        (units, !self.connections.nodes.is_empty())
    }
}

/// So few queues are looked at before any is visited.
pub(crate) const FEW: usize = 8;

/// The active queues of a worker, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    groups: Level<GroupNode>,
    len: usize,
    /// All of them, if they are few.
    few: [u32; FEW],
}

impl Schedule {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn only(&self) -> Option<u32> {
        (self.len == 1).then_some(self.few[0])
    }

    /// All of them, if they are few; otherwise none.
    #[inline(always)]
    pub(crate) fn few(&self) -> &[u32] {
        self.few.get(..self.len).unwrap_or_default()
    }

    /// Give every queue a turn whose connection and group have credit. A visit ends no other queue's membership.
    #[inline(always)]
    pub(crate) fn turns(&mut self, visit: &mut impl FnMut(u32) -> Visited) {
        let mut gone = 0;
        self.groups.turns(i64::MAX, &mut |id| {
            let visited = visit(id);
            gone += usize::from(!visited.stays);
            visited
        });
        if gone > 0 {
            self.set_len(self.len - gone);
        }
    }

    #[cold]
    pub(crate) fn add(&mut self, id: u32, client: u64, share: &Share) {
        let group = find_or_add(
            &mut self.groups,
            |node| Arc::ptr_eq(&node.group, &share.group),
            |round| GroupNode {
                account: Account::new(round, quantum_of(&share.group.weight)),
                group: Arc::clone(&share.group),
                connections: Level::default(),
            },
        );
        let connection = find_or_add(
            &mut group.connections,
            |node| node.client == client,
            |round| ConnectionNode {
                account: Account::new(round, quantum_of(&share.weight)),
                client,
                weight: Arc::clone(&share.weight),
                queues: Level::default(),
            },
        );
        let account = Account::new(connection.queues.round, QUANTUM.into());
        connection.queues.nodes.push(QueueNode { account, id });
        self.set_len(self.len + 1);
    }

    #[cold]
    pub(crate) fn remove(&mut self, id: u32) {
        let before = self.len;
        let mut left = 0;
        for group in &mut self.groups.nodes {
            for connection in &mut group.connections.nodes {
                connection.queues.nodes.retain(|queue| queue.id != id);
                left += connection.queues.nodes.len();
            }
            group.connections.nodes.retain(|connection| !connection.queues.nodes.is_empty());
        }
        self.groups.nodes.retain(|group| !group.connections.nodes.is_empty());
        if left != before {
            self.set_len(left);
        }
    }

    fn set_len(&mut self, len: usize) {
        self.len = len;
        let connections = self.groups.nodes.iter().flat_map(|group| &group.connections.nodes);
        let queues = connections.flat_map(|connection| &connection.queues.nodes);
        self.few.iter_mut().zip(queues).for_each(|(id, queue)| *id = queue.id);
    }
}

fn find_or_add<N>(level: &mut Level<N>, is_it: impl Fn(&N) -> bool, make: impl FnOnce(u64) -> N) -> &mut N {
    let place = level.nodes.iter().position(is_it).unwrap_or_else(|| {
        level.nodes.push(make(level.round));
        level.nodes.len() - 1
    });
    &mut level.nodes[place]
}
