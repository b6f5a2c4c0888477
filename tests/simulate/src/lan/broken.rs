//! Transmit queues that are broken on purpose.

use std::any::Any;
use std::sync::Arc;

use fipsee_ring::channel::{QueueGeometry, ServerQueue};
use fipsee_ring::region::Region;
use fipsee_ring::ring::Reader;
use fipsee_serve::session::{Granted, Part};
use fipsee_serve::{Command, Queue, Taken, Turn};

use crate::context::Context;
use crate::queue::SimEngine;
use crate::variant::Variant;

/// A transmit queue that takes frames twice, or in the wrong order.
struct BrokenQueue {
    inner: Box<dyn Queue<SimEngine>>,
    variant: Variant,
    region: Arc<Region>,
    geometry: QueueGeometry,
    has_repeated: bool,
}

/// With its transmit queues broken, if that is wanted.
pub(crate) fn granted(context: &Context, mut granted: Granted<SimEngine>) -> Granted<SimEngine> {
    let Some(variant @ (Variant::FrameTakenTwice | Variant::FramesSwapped)) = context.variant else { return granted };
    let (region, queues) = (&granted.grant.region, &granted.grant.layout.queues);
    let broken = |(worker, command): (usize, Command<SimEngine>)| match command {
        Command::Add { name, share, make, added } if name.index % 2 == 0 => {
            let (region, geometry) = (Arc::clone(region), queues[usize::from(name.index)]);
            let make = move |id| -> Result<Box<dyn Queue<SimEngine>>, String> {
                Ok(Box::new(BrokenQueue { inner: make(id)?, variant, region, geometry, has_repeated: false }))
            };
            (worker, Command::Add { name, share, make: Box::new(make), added })
        }
        command => (worker, command),
    };
    granted.commands = std::mem::take(&mut granted.commands).into_iter().map(broken).collect();
    granted
}

/// What another process is given, without a buffer that was taken from a ring and holds no frame, if that is wanted.
pub(crate) fn saved<F>(context: &Context, parts: &mut [Part<F>]) {
    if !context.is_broken(Variant::TakeoverForgetsBuffer) {
        return;
    }
    for Part { state, .. } in &mut parts[1..] {
        // Positions, events, and a line for each buffer.
        if let Some((rest, _)) = state.rsplit_once('\n').filter(|(rest, _)| rest.contains('\n')) {
            *state = rest.to_owned();
        }
    }
}

impl BrokenQueue {
    /// The two messages that come next change places.
    fn swap(&self) {
        const STAMP: usize = 60;
        let Some(cursor) = self.inner.end().map(|end| end.requests.cursor()) else { return };
        let slot = |index: u32| self.geometry.request_offset_bytes + 64 * u64::from(index);
        if cursor.index() + 1 >= self.geometry.request_slots {
            return;
        }
        let mut both = [[0; 64]; 2];
        for (bytes, index) in both.iter_mut().zip(cursor.index()..) {
            self.region.read(slot(index), bytes).expect("within the region");
        }
        if both.iter().all(|bytes| bytes[STAMP..] == cursor.stamp().to_le_bytes()) {
            self.region.write(slot(cursor.index()), &both[1][..STAMP]).expect("within the region");
            self.region.write(slot(cursor.index() + 1), &both[0][..STAMP]).expect("within the region");
        }
    }
}

impl Queue<SimEngine> for BrokenQueue {
    fn end(&self) -> Option<&ServerQueue> {
        self.inner.end()
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        self.inner.end_mut()
    }

    fn visit(&mut self, engine: &mut SimEngine, turn: Turn) -> Taken {
        if self.variant == Variant::FramesSwapped {
            self.swap();
        }
        let before = self.inner.end().map(|end| end.requests.cursor());
        let taken = self.inner.visit(engine, turn);
        if self.variant == Variant::FrameTakenTwice
            && taken.requests > 0
            && !std::mem::replace(&mut self.has_repeated, true)
            && let (Some(before), Some(end)) = (before, self.inner.end_mut())
        {
            let tuning = self.geometry.tuning();
            let ring = self.geometry.request_ring(&self.region, &tuning).expect("it fits");
            end.requests = Reader::new(ring, before, &tuning);
        }
        taken
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn moved(&mut self, id: u32) {
        self.inner.moved(id);
    }

    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>> {
        self.inner.saved_state(own)
    }
}
