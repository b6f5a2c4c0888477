//! What programs do with a port beside sending and receiving copies: frames that are held, event loops, and reconnecting.

use std::os::fd::AsFd;

use fipsee_net::{AttachOptions, Error, Frame, NetError, Port, ReconnectEvent, ReconnectPolicy};
use fipsee_ring::clock;
use fipsee_ring::doorbell::await_readable;
use fipsee_testkit::{TIMEOUT, eventually};

use super::{all_sent, assert_nothing, attach, frame, lan, mac, next, options, stat};

fn held(port: &mut Port) -> Frame {
    let deadline = clock::ticks() + clock::duration_to_ticks(TIMEOUT);
    port.wait_frame(Some(deadline)).expect("the daemon is there").expect("a frame in time")
}

#[test]
fn frames_are_held_where_they_came_and_their_buffers_posted_again() {
    let daemon = lan(9000, ["", "", ""]);
    for buffer_bytes in [None, Some(512)] {
        let mut a = attach(&daemon.socket(), "a");
        let mut b = Port::attach(&daemon.socket(), &AttachOptions { buffer_bytes, depth: 32, ..options("b") }).expect("attached");
        for (seed, length) in (0..).zip([14, 56, 57, 512, 513, 1514, 9014]) {
            let sent = frame(mac(1), mac(2), length, seed);
            a.send(&sent).expect("sent");
            let frame = held(&mut b);
            let pieces: Vec<u32> = frame.pieces().map(|(_, length_bytes)| length_bytes).collect();
            let expected = buffer_bytes.map_or(1, |bytes: u32| length.div_ceil(bytes as usize));
            assert_eq!((pieces.len(), pieces.iter().sum::<u32>() as usize), (expected, length));
            assert_eq!((frame.length_bytes() as usize, frame.to_vec().expect("mapped")), (length, sent.clone()));
            let mut part = [0; 20];
            let count = frame.read(10, &mut part).expect("mapped");
            assert_eq!(part[..count], sent[10..sent.len().min(30)]);
            assert_eq!(frame.read(u32::try_from(length).expect("small"), &mut part).expect("mapped"), 0);
        }
        // Far more than there are buffers: each came back.
        for seed in 0..200 {
            a.send(&frame(mac(1), mac(2), 600, seed)).expect("sent");
            assert_eq!(held(&mut b).to_vec().expect("mapped"), frame(mac(1), mac(2), 600, seed));
        }
        // While all are held, frames are lost. A frame may outlive its port, and be dropped elsewhere.
        let mut frames = Vec::new();
        let per_frame = if buffer_bytes.is_some() { 2 } else { 1 };
        while frames.len() < 32 / per_frame {
            a.send(&frame(mac(1), mac(2), 600, 7)).expect("sent");
            frames.push(held(&mut b));
        }
        a.send(&frame(mac(1), mac(2), 600, 8)).expect("sent");
        all_sent(&mut a);
        assert_nothing(&mut b);
        std::thread::scope(|scope| scope.spawn(|| frames.truncate(1)).join()).expect("no panic");
        assert_nothing(&mut b);
        (0..5).for_each(|seed| a.send(&frame(mac(1), mac(2), 600, seed)).expect("sent"));
        all_sent(&mut a);
        assert_eq!(b.take_batch(&mut frames, 3).expect("the daemon is there"), 3);
        assert_eq!(b.take_batch(&mut frames, 9).expect("the daemon is there"), 2);
        a.detach().expect("detached");
        b.detach().expect("detached");
        let found: Vec<Vec<u8>> = frames[1..].iter().map(|frame| frame.to_vec().expect("mapped")).collect();
        assert_eq!(found, (0..5).map(|seed| frame(mac(1), mac(2), 600, seed)).collect::<Vec<_>>());
        eventually("the ports are free", || {
            stat(&daemon, "a").get("client").is_none() && stat(&daemon, "b").get("client").is_none()
        });
    }
}

#[test]
fn frames_are_received_into_a_buffer_as_far_as_they_fit() {
    let daemon = lan(1500, ["", "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    let mut buffer = [0; 100];
    assert_eq!(b.receive_into(&mut buffer).expect("the daemon is there"), None);
    for length in [20, 56, 57, 100, 101, 1514] {
        let sent = frame(mac(1), mac(2), length, 5);
        a.send(&sent).expect("sent");
        let deadline = clock::ticks() + clock::duration_to_ticks(TIMEOUT);
        let found = b.wait_into(Some(deadline), &mut buffer).expect("the daemon is there").expect("a frame in time");
        assert_eq!(found as usize, length);
        let fits = length.min(buffer.len());
        assert_eq!(buffer[..fits], sent[..fits]);
    }
}

/// Wait as an event loop does, for what `look` finds.
fn looped<T>(port: &mut Port, mut look: impl FnMut(&mut Port) -> Option<T>) -> Result<T, Error> {
    loop {
        if let Some(found) = look(port) {
            return Ok(found);
        }
        if !port.arm()? {
            await_readable(port.descriptor()?, Some(TIMEOUT)).expect("it can be waited for");
        }
        port.woken()?;
    }
}

#[test]
fn one_descriptor_says_that_a_frame_or_a_free_buffer_is_there_or_the_daemon_is_gone() {
    let limit = format!("[[user]]\nname = {}\niops = 3000", rustix::process::geteuid().as_raw());
    let mut daemon = lan(1500, ["", "", &limit]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    let mut found = Vec::new();
    let echo = std::thread::spawn({
        let mut c = attach(&daemon.socket(), "c");
        move || {
            for _ in 0..200 {
                let came = next(&mut c);
                c.send(&[&came[6..12], &mac(3).0, &[0x88, 0xb5, 1]].concat()).expect("sent");
            }
            // What it has sent and the daemon has not taken yet, under the limit, would end with it.
            c
        }
    });
    for seed in 0..200 {
        b.stage(&frame(mac(2), mac(3), 64, seed)).expect("staged");
        let came = looped(&mut b, |b| b.receive(&mut found).expect("the daemon is there").then_some(()));
        came.expect("the daemon is there");
    }
    drop(echo.join().expect("no panic"));
    // The limit leaves all transmit buffers in use: the descriptor says when one is free.
    let sent = frame(mac(1), mac(2), 1000, 1);
    let mut full = 0;
    for _ in 0..150 {
        let send = |a: &mut Port| {
            let outcome = a.send(&sent);
            full += u32::from(matches!(outcome, Err(Error::Full)));
            outcome.ok()
        };
        looped(&mut a, send).expect("the daemon is there");
    }
    assert!(full > 0, "the limit was never reached");
    let descriptor = a.descriptor().expect("made before").as_fd().try_clone_to_owned().expect("a descriptor");
    daemon.kill_9();
    let gone = looped(&mut a, |a| {
        while a.receive(&mut found).expect("no fault") {}
        None::<()>
    });
    assert!(matches!(gone, Err(Error::Disconnected)), "{gone:?}");
    await_readable(&descriptor, None).expect("still readable");
}

#[test]
fn ports_attach_again_and_count_what_was_lost() {
    let mut daemon = lan(1500, ["", "", ""]);
    let mut a = Port::attach_pairs(&daemon.socket(), &AttachOptions { pairs: 2, ..options("a") }).expect("attached");
    let mut b = attach(&daemon.socket(), "b");
    let wrong = [&mac(2).0[..], &mac(9).0, &[8, 0]].concat();
    a[0].send(&wrong).expect("sent");
    all_sent(&mut a[0]);
    a[0].send(&frame(mac(1), mac(2), 900, 1)).expect("sent");
    let kept = held(&mut b);
    let stale = a[1].buffer().expect("a free one");
    daemon.kill_9();
    a[0].stage(&frame(mac(1), mac(2), 100, 2)).expect("staged");
    a[1].send(&frame(mac(1), mac(2), 100, 3)).expect("a ring takes it");
    a[1].send(&frame(mac(1), mac(2), 20, 4)).expect("a ring takes it");
    assert!(matches!(a[0].wait(None, &mut Vec::new()), Err(Error::Disconnected)));
    let lost = [a[0].unsent(), a[1].unsent()];
    assert!(lost[0] >= 1 && lost[1] == 2, "{lost:?}");
    let once = ReconnectPolicy { give_up_after: std::time::Duration::ZERO, ..ReconnectPolicy::FOR_EVER };
    let refused = Port::reconnect(&mut a, &once, &mut |_| {});
    assert!(matches!(refused, Err(Error::Connect { .. })), "{refused:?}");
    daemon.restart();
    let mut steps = 0;
    Port::reconnect(&mut a, &ReconnectPolicy::FOR_EVER, &mut |event| {
        steps += u32::from(matches!(event, ReconnectEvent::Lost | ReconnectEvent::Resumed { attempts: 1.. }));
    })
    .expect("attached again");
    Port::reconnect(std::slice::from_mut(&mut b), &ReconnectPolicy::FOR_EVER, &mut |_| {}).expect("attached again");
    assert_eq!(steps, 2);
    assert_eq!((a[0].counters().refused, a[0].counters().lost, a[1].counters().lost), (1, lost[0].into(), 2));
    assert!(matches!(a[1].send_buffer(stale, 60), Err(Error::Service(NetError::OtherBuffer))));
    assert_eq!(kept.to_vec().expect("still mapped"), frame(mac(1), mac(2), 900, 1));
    drop(kept);
    for seed in 0..200 {
        let pair = &mut a[usize::from(seed % 2 == 1)];
        pair.send(&frame(mac(1), mac(2), 100, seed)).expect("sent");
        assert_eq!(next(&mut b), frame(mac(1), mac(2), 100, seed));
    }
    // While the daemon is there, too: the old attachment ends first.
    Port::reconnect(&mut a, &ReconnectPolicy::FOR_EVER, &mut |_| {}).expect("attached again");
    a[0].send(&frame(mac(1), mac(2), 100, 9)).expect("sent");
    assert_eq!(next(&mut b), frame(mac(1), mac(2), 100, 9));
}

#[test]
fn another_port_of_the_same_name_is_not_attached_to_again() {
    let mut daemon = lan(1500, ["", "", ""]);
    let mut a = attach(&daemon.socket(), "a");
    let network = |mtu: u16, mac: &str| {
        format!("[[network]]\nname = \"lan\"\nmtu = {mtu}\n[[network.port]]\nname = \"a\"\nmac = \"{mac}\"\n")
    };
    for (file, what) in [(network(1500, "02:00:00:00:00:0a"), "MAC address"), (network(1400, "02:00:00:00:00:01"), "MTU")] {
        daemon.kill_9();
        daemon.dir.configure(&file);
        daemon.restart();
        let other = Port::reconnect(std::slice::from_mut(&mut a), &ReconnectPolicy::FOR_EVER, &mut |_| {}).expect_err("another");
        assert!(matches!(other, Error::Service(NetError::Different(found)) if found == what), "{other}");
    }
    daemon.kill_9();
    daemon.dir.configure(&network(1500, "02:00:00:00:00:01"));
    daemon.restart();
    Port::reconnect(std::slice::from_mut(&mut a), &ReconnectPolicy::FOR_EVER, &mut |_| {}).expect("the same as before");
}
