//! Typed calls: client and server, faulty peers of each, and the end of either.

mod calls;
mod death;
mod endurance;
mod examples;
mod hostile_client;
mod hostile_server;
mod measured_choices;
mod service;

fipsee_testkit::children! {
    "server" => death::server,
    "mute_server" => death::mute_server,
    "client" => death::client,
    "a_million_calls" => endurance::a_million_calls,
    "default_is_what_is_expected" => measured_choices::default_is_what_is_expected,
}
