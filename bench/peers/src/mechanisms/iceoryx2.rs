//! iceoryx2: publish and subscribe, and request and response, as its own benchmarks use them: a node in each process,
//! loaned memory that is written in place, `receive` in a loop. Overflow is off, or messages would be dropped.

use std::collections::VecDeque;

use fipsee_ring::Message;
use iceoryx2::active_request::ActiveRequest;
use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::server::Server;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{LogLevel, Node, NodeBuilder, ServiceName, ZeroCopySend, ipc, set_log_level};

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side};

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Payload([u64; 8]);

// SAFETY: numbers, without pointers, of one layout in both processes. (The derive macro takes no `align`.)
unsafe impl ZeroCopySend for Payload {}

type Pending = PendingResponse<ipc::Service, Payload, (), Payload, ()>;
type Active = ActiveRequest<ipc::Service, Payload, (), Payload, ()>;

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

/// Services are found by name: one that no other job has.
fn unique(what: &str) -> String {
    format!("fipsee-peers/{}/{what}", std::process::id())
}

fn open_node() -> Result<Node<ipc::Service>, String> {
    set_log_level(LogLevel::Error);
    NodeBuilder::new().create::<ipc::Service>().map_err(text)
}

fn service_name(name: &str) -> Result<ServiceName, String> {
    name.try_into().map_err(text)
}

/// Names of the service for calls and that for answers.
pub struct PublishSubscribe([String; 2]);

pub struct PublishSubscribeEnd {
    publisher: Publisher<ipc::Service, Payload, ()>,
    subscriber: Subscriber<ipc::Service, Payload, ()>,
    _node: Node<ipc::Service>,
}

impl Mechanism for PublishSubscribe {
    type End = PublishSubscribeEnd;

    fn share(_: &Plan) -> Result<Self, String> {
        Ok(Self([unique("calls"), unique("answers")]))
    }

    fn open(self, side: Side, plan: &Plan) -> Result<PublishSubscribeEnd, String> {
        let node = open_node()?;
        let service = |name: &str| {
            let builder = node.service_builder(&service_name(name)?).publish_subscribe::<Payload>();
            let builder = builder.max_publishers(1).max_subscribers(1).max_nodes(2).history_size(0).enable_safe_overflow(false);
            builder.subscriber_max_buffer_size(plan.slots as usize).open_or_create().map_err(text)
        };
        let (calls, answers) = (service(&self.0[0])?, service(&self.0[1])?);
        let (outgoing, incoming) = if side == Side::Client { (calls, answers) } else { (answers, calls) };
        let publisher = outgoing.publisher_builder().create().map_err(text)?;
        let subscriber = incoming.subscriber_builder().create().map_err(text)?;
        Ok(PublishSubscribeEnd { publisher, subscriber, _node: node })
    }
}

impl End for PublishSubscribeEnd {
    /// Blocks while the subscriber's buffer is full.
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        for message in messages {
            let sample = self.publisher.loan_uninit().unwrap_or_else(|error| panic!("{error:?}"));
            let sent = sample.write_payload(Payload(*message.words())).send();
            assert!(matches!(sent, Ok(1)), "not delivered: {sent:?}");
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut backoff = SpinBackoff::default();
        let mut count = 0;
        while count < into.len() {
            match self.subscriber.receive().unwrap_or_else(|error| panic!("{error:?}")) {
                Some(sample) => {
                    into[count] = Message::from_words(sample.0);
                    count += 1;
                }
                None if count > 0 => break,
                None => backoff.look_again(),
            }
        }
        count
    }
}

pub struct RequestResponse(String);

pub struct RequestResponseEnd {
    port: Port,
    _node: Node<ipc::Service>,
}

enum Port {
    Client { client: Client<ipc::Service, Payload, (), Payload, ()>, pending: VecDeque<Pending> },
    Server { server: Server<ipc::Service, Payload, (), Payload, ()>, active: VecDeque<Active> },
}

impl Mechanism for RequestResponse {
    type End = RequestResponseEnd;

    fn share(_: &Plan) -> Result<Self, String> {
        Ok(Self(unique("requests")))
    }

    fn open(self, side: Side, plan: &Plan) -> Result<RequestResponseEnd, String> {
        let (node, depth) = (open_node()?, plan.burst);
        let builder = node.service_builder(&service_name(&self.0)?).request_response::<Payload, Payload>();
        let builder = builder.max_clients(1).max_servers(1).max_nodes(2).max_active_requests_per_client(depth);
        let builder = builder.enable_safe_overflow_for_requests(false).enable_safe_overflow_for_responses(false);
        let service = builder.max_response_buffer_size(1).max_loaned_requests(1).open_or_create().map_err(text)?;
        let port = match side {
            Side::Client => {
                Port::Client { client: service.client_builder().create().map_err(text)?, pending: VecDeque::with_capacity(depth) }
            }
            Side::Server => {
                Port::Server { server: service.server_builder().create().map_err(text)?, active: VecDeque::with_capacity(depth) }
            }
        };
        Ok(RequestResponseEnd { port, _node: node })
    }
}

impl End for RequestResponseEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        for message in messages {
            let payload = Payload(*message.words());
            match &mut self.port {
                Port::Client { client, pending } => {
                    let request = client.loan_uninit().unwrap_or_else(|error| panic!("{error:?}"));
                    pending.push_back(request.write_payload(payload).send().unwrap_or_else(|error| panic!("{error:?}")));
                }
                Port::Server { active, .. } => {
                    let Some(request) = active.pop_front() else { panic!("an answer without a request") };
                    let response = request.loan_uninit().unwrap_or_else(|error| panic!("{error:?}"));
                    response.write_payload(payload).send().unwrap_or_else(|error| panic!("{error:?}"));
                }
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut backoff = SpinBackoff::default();
        let mut count = 0;
        while count < into.len() {
            let received = match &mut self.port {
                Port::Client { pending, .. } => receive_response(pending),
                Port::Server { server, active } => receive_request(server, active),
            };
            match received {
                Some(Payload(words)) => {
                    into[count] = Message::from_words(words);
                    count += 1;
                }
                None if count > 0 => break,
                None => backoff.look_again(),
            }
        }
        count
    }
}

/// The response to the oldest request.
#[inline(always)]
fn receive_response(pending: &mut VecDeque<Pending>) -> Option<Payload> {
    let response = pending.front()?.receive().unwrap_or_else(|error| panic!("{error:?}"))?;
    let payload = *response;
    drop(response);
    pending.pop_front();
    Some(payload)
}

#[inline(always)]
fn receive_request(server: &Server<ipc::Service, Payload, (), Payload, ()>, active: &mut VecDeque<Active>) -> Option<Payload> {
    let request = server.receive().unwrap_or_else(|error| panic!("{error:?}"))?;
    let payload = *request;
    active.push_back(request);
    Some(payload)
}
