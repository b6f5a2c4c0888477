//! Faulty guests and hypervisors, over virtqueues and over rings in guest memory: a request is carried out as it was checked, or
//! fails, or its queue stops, or the hypervisor is disconnected; no other client is affected.

use fipsee_testkit::faulty::guests::FAULTS;

use crate::injecting;

injecting::faults! {
    FAULTS,
    addresses_rewritten_while_they_are_read_are_used_as_they_were_checked: "guest: addresses rewritten while they are read" One,
    links_rewritten_while_they_are_followed_stop_their_queue_at_most: "guest: links rewritten while they are followed" AllAllowed
        says "a virtqueue broke and is not served until it is reset" (1..=20),
    an_indirect_table_rewritten_while_it_is_read_is_used_as_it_was_checked: "guest: an indirect table rewritten while it is read" One,
    malformed_chains_stop_their_queue_with_one_line_each: "guest: malformed chains, connects again" AllAllowed
        says "a virtqueue broke and is not served until it is reset" (16..=16),
    kicks_without_end_harm_no_other_client: "guest: kicks" One,
    upgrade_requests_of_random_bytes_are_answered: "guest: upgrade requests of random bytes" One,
    memory_that_cannot_be_is_refused_every_time: "guest: memory of every wrong kind, connects again" AllAllowed
        says "a hypervisor is refused and detached" (1..=400),
    memory_cut_under_a_queue_stops_it_every_time: "guest: memory cut under its queue, connects again" AllAllowed
        says "a virtqueue broke and is not served until it is reset" (12..=12),
    half_messages_without_end_harm_no_other_client: "guest: half a message, connects again" AllAllowed,
    slots_of_a_ring_rewritten_while_they_are_read_are_used_as_they_were_checked: "guest: ring: slots rewritten while they are read" One,
    stamps_of_other_laps_are_no_requests: "guest: ring: stamps of other laps" One,
    touches_of_a_guest_that_come_late_harm_it_only: "guest: ring: touches that come late" One,
    asleep_flags_that_flicker_harm_no_other_client: "guest: ring: asleep flags that flicker" One,
    kicks_of_a_guest_on_rings_harm_no_other_client: "guest: ring: kicks" One,
    hanging_up_with_a_request_on_its_way_harms_no_other_client: "guest: ring: hangs up with a request on its way" AllAllowed,
}
