//! A daemon goes on where another stopped: quiesced workers, states of queues, sessions.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fipsee_block::server::{EventState, QueueState};
use fipsee_block::wire::PROFILE;
use fipsee_daemon::export::Kind;
use fipsee_net::wire::SERVICE_NET;
use fipsee_ring::ring::Cursor;
use fipsee_serve::session::{AdoptedChannel, Channel, Client, Credentials, Held, Part, Registered, Service, Session, State};
use fipsee_serve::{AskedToQuiesce, Assignment, Command, IfAbandoned, QueueName, Quiesced};
use fipsee_service::SERVICE_SUMS;

use crate::context::Context;
use crate::daemon::Daemon;
use crate::lan::broken;
use crate::link::Link;
use crate::queue::SimEngine;
use crate::service::{End, SimAttachment};
use crate::variant::Variant;

/// Longer than any lifetime: such a takeover never gives up.
const LONG: Duration = Duration::from_secs(3600);

/// Ask the workers to stop; `waits`: for requests in flight, else the takeover ends when there are any.
pub(crate) fn ask(daemon: &Daemon, waits: bool) -> AskedToQuiesce {
    let timeout = if waits { LONG } else { Duration::ZERO };
    Quiesced::ask(&daemon.handles, Vec::new(), timeout, IfAbandoned::Resume)
}

/// The workers have stopped: the next daemon, or the same one if it cannot be.
pub(crate) fn go_on(mut old: Daemon, still: Quiesced, context: &Arc<Context>, links: &mut [Link]) -> Daemon {
    old.transport.take_reports(links);
    if !old.transport.sessions.is_settled() {
        context.say(|| "takeover: refused, clients that are gone have requests in flight".to_owned());
        still.resume();
        return old;
    }
    if !is_served_whole(&old, &still) {
        // It detaches, and some of its queues have been released. The daemon refuses likewise; the next attempt finds it gone.
        context.say(|| "takeover: refused, a client is about to be gone".to_owned());
        still.resume();
        return old;
    }
    let host = &old.transport.sessions.host;
    let mut new = Daemon::new(context, old.handles.len(), host.shared, host.next_client);
    let mut taking =
        Taking { context, commands: old.handles.iter().map(|_| Vec::new()).collect(), given: Vec::new(), are_same: Vec::new() };
    let mut sessions: Vec<(u64, &Session<SimEngine>)> = old.transport.sessions.iter().collect();
    sessions.sort_unstable_by_key(|(client, _)| *client);
    let mut detaching = Vec::new();
    for (client, session) in sessions {
        let state = match &session.state {
            State::Silent { since } => State::Silent { since: *since },
            State::Greeted { since } => State::Greeted { since: *since },
            State::Attached(held) => State::Attached(taking.adopt_any(&old, &new, (client, session), held, &still)),
            State::Detaching(held) => {
                detaching.push(client);
                State::Attached(taking.adopt_any(&old, &new, (client, session), held, &still))
            }
            State::Done => State::Done,
        };
        let session = Session::new(session.credentials.clone(), session.limits, session.features, session.share.clone(), state);
        new.transport.sessions.adopt(client, session);
    }
    let Taking { commands, given, are_same, .. } = taking;
    let asked = Quiesced::ask(&new.handles, commands, Duration::ZERO, IfAbandoned::Release);
    for worker in &mut new.workers {
        let _ = (worker.worker.pass(), worker.worker.pass());
    }
    match asked.poll() {
        Ok(Ok(quiesced)) => {
            let differs = |(queue, state): &(QueueName, QueueState)| quiesced.state(*queue) != Some(state);
            if given.iter().any(differs) || !are_same.iter().all(|is_same| is_same(&quiesced)) {
                context.violated(|| "a queue is not where the old daemon left it".to_owned());
            }
            drop(old);
            drop(still);
            quiesced.resume();
        }
        _ => context.violated(|| "the new daemon's workers do not quiesce".to_owned()),
    }
    context.say(|| format!("takeover: another daemon serves {} clients", new.transport.sessions.len()));
    for client in detaching {
        let _ = new.transport.sessions.detach(client);
    }
    new.transport.carry_out(links);
    new
}

fn is_served_whole(old: &Daemon, still: &Quiesced) -> bool {
    old.transport.sessions.iter().all(|(client, session)| {
        let Some(held) = session.held() else { return true };
        let Some(block) = attachment(held) else { return held.attachment.save(client, still).is_ok() };
        let mut queues = (0_u16..).take(block.channel.layout.queues.len());
        matches!(session.state, State::Attached(_))
            || queues.all(|index| still.state::<QueueState>(QueueName { client, index }).is_some())
    })
}

fn attachment(held: &Held<SimEngine>) -> Option<&SimAttachment> {
    (&*held.attachment as &dyn Any).downcast_ref()
}

/// As another process gets it.
fn owned(Part { state, files }: Part<BorrowedFd<'_>>) -> Part<OwnedFd> {
    Part { state, files: files.iter().map(|file| file.try_clone_to_owned().expect("a descriptor")).collect() }
}

/// Is a queue in the state that the old daemon left?
type IsSame = Box<dyn Fn(&Quiesced) -> bool>;

struct Taking<'a> {
    context: &'a Arc<Context>,
    commands: Vec<Vec<Command<SimEngine>>>,
    given: Vec<(QueueName, QueueState)>,
    are_same: Vec<IsSame>,
}

impl Taking<'_> {
    fn adopt_any(
        &mut self,
        old: &Daemon,
        new: &Daemon,
        (id, session): (u64, &Session<SimEngine>),
        held: &Held<SimEngine>,
        still: &Quiesced,
    ) -> Held<SimEngine> {
        if attachment(held).is_some() {
            return self.adopt(old, new, (id, session), held, still);
        }
        let parts = held.attachment.save(id, still).expect("served whole").into_iter().map(owned);
        let mut parts: Vec<Part<OwnedFd>> = parts.collect();
        if self.context.is_broken(Variant::TakeoverForgetsService)
            && held.attachment.service() == SERVICE_SUMS
            && let Some(end) = parts[0].state.find('\n')
        {
            parts[0].state.replace_range(end.., "\n0");
        }
        let Session { credentials, limits, features, share, .. } = session;
        let client = Client { id, credentials, limits: *limits, features: *features, share };
        let host = &new.transport.sessions.host;
        let adopted = match held.attachment.service() {
            SERVICE_NET => {
                broken::saved(self.context, &mut parts);
                host.networks.adopt(&client, parts)
            }
            _ => host.sums.adopt(&client, parts),
        };
        let adopted = adopted.expect("as it was saved");
        adopted.commands.into_iter().for_each(|(worker, command)| self.commands[worker].push(command));
        self.are_same.push(adopted.is_same);
        Held::new(adopted.attachment, adopted.assignments)
    }

    fn adopt(
        &mut self,
        old: &Daemon,
        new: &Daemon,
        (client, session): (u64, &Session<SimEngine>),
        held: &Held<SimEngine>,
        still: &Quiesced,
    ) -> Held<SimEngine> {
        let block = attachment(held).expect("our own");
        let host = &new.transport.sessions.host;
        let mut states = Vec::new();
        let parts = block.channel.save("", |index| {
            let name = QueueName { client, index };
            let state = still.state::<QueueState>(name).ok_or("a queue has no state to hand over")?;
            let state = self.given(*state, block.channel.layout.queues[usize::from(index)].completion_slots);
            states.push(state);
            self.given.push((name, state));
            Ok(((state.request, state.completion), String::new()))
        });
        let AdoptedChannel { channel, queues, .. } =
            Channel::adopt(&PROFILE, parts.expect("served whole").into_iter().map(owned).collect()).expect("as it was saved");
        self.context.mapped(&channel.region);
        let ends: Vec<End> = queues.into_iter().zip(states).map(|((queue, _), state)| (queue, Some(state))).collect();
        let assignments: Vec<Assignment> = ends.iter().map(|_| Assignment::choose(&new.handles)).collect();
        let attachment = host.attachment(channel, block.reads_only);
        for (worker, command) in host.commands((client, &session.share), &attachment, &assignments, ends) {
            self.commands[worker].push(command);
        }
        let terms = old.transport.sessions.host.export.terms_of(client);
        let credentials = Credentials { pid: 0, uid: 0, gid: 0, more_gids: Vec::new() };
        host.export.keep(Kind::Ring, client, &credentials, terms);
        let mut adopted = Held::new(Box::new(attachment), assignments);
        for (id, memory) in &held.memory {
            let file = memory.region.as_fd().try_clone_to_owned().expect("a descriptor");
            let registered = Registered::map(file, memory.region.length_bytes(), memory.access).expect("memory");
            self.context.mapped(&registered.region);
            for worker in adopted.workers() {
                if let Some(takes) = adopted.attachment.memory() {
                    let command = takes.add_region(client, *id, &registered.region, registered.access, Arc::new(()));
                    self.commands[worker].push(command);
                }
            }
            adopted.memory.insert(*id, registered);
        }
        adopted
    }

    fn given(&self, mut state: QueueState, completion_slots: u32) -> QueueState {
        let (request, completion) = (state.request, state.completion);
        if self.context.is_broken(Variant::TakeoverRepeatsRequest) && request.index() > 0 {
            state.request = Cursor::at(request.index() - 1, request.stamp());
        }
        if self.context.is_broken(Variant::TakeoverSkipsCompletion) && completion.index() + 1 < completion_slots {
            state.completion = Cursor::at(completion.index() + 1, completion.stamp());
        }
        self.context.oracle().may_repeat_size |= state.resize.wanted.is_some();
        if self.context.is_broken(Variant::TakeoverForgetsEvents) {
            state.resize = EventState::default();
        }
        state
    }
}
