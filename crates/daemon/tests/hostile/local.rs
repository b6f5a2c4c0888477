//! Faulty clients: the daemon goes on, a correct client is not affected, the log stays short, and nothing of the faulty client
//! stays.

use fipsee_testkit::faulty::faults::FAULTS;

use crate::injecting;

injecting::faults! {
    FAULTS,
    stamps_of_other_laps_are_no_requests: "stamps of other laps" One,
    slots_of_random_bytes_are_answered: "slots of random bytes" One,
    a_slot_rewritten_while_it_is_read_is_used_as_it_was_checked: "a slot rewritten while it is read" One,
    an_indirect_table_rewritten_while_it_is_read_is_used_as_it_was_checked: "an indirect table rewritten while it is read" One,
    a_table_that_its_own_request_overwrites_is_read_once: "a table that its own request overwrites" One,
    more_requests_than_the_depth_harm_their_client_only: "more requests than the depth, no answer taken" One,
    asleep_flags_that_flicker_harm_no_other_client: "asleep flags that flicker" One,
    touches_that_come_late_harm_their_client_only: "touches that come late" One,
    doorbells_without_end_harm_no_other_client: "doorbells" One,
    control_messages_without_end_harm_no_other_client: "control messages, no answer taken" AllAllowed,
    connections_without_end_harm_no_other_client: "connections that end at once" AllAllowed,
    attachments_without_end_harm_no_other_client: "attachments that end at once" AllAllowed,
    memory_that_can_be_cut_is_refused_every_time: "memory of every wrong kind" One,
}
