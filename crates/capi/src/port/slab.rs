//! Things that C holds by a number.

/// A number is used again, with another count in its upper half, so that one that is given back twice is noticed.
pub(super) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

struct Place<T> {
    value: Option<T>,
    round: u32,
}

impl<T> Slab<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let mut slab = Self { places: Vec::new(), free: Vec::new() };
        slab.grow(capacity);
        slab
    }

    /// Have room for at least so many.
    pub(super) fn grow(&mut self, capacity: usize) {
        let first = self.places.len();
        self.free.extend((first..capacity).rev().filter_map(|index| u32::try_from(index).ok()));
        self.places.extend((first..capacity).map(|_| Place { value: None, round: 0 }));
    }

    pub(super) const fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// `None`: there is no room.
    #[inline]
    pub(super) fn put(&mut self, value: T) -> Option<u64> {
        let index = self.free.pop()?;
        let place = self.places.get_mut(index as usize)?;
        place.value = Some(value);
        place.round = place.round.wrapping_add(1);
        Some(u64::from(place.round) << 32 | u64::from(index))
    }

    #[inline]
    fn index_of(&self, handle: u64) -> Option<u32> {
        let index = u32::try_from(handle & u64::from(u32::MAX)).ok()?;
        let place = self.places.get(index as usize)?;
        (u64::from(place.round) == handle >> 32).then_some(index)
    }

    pub(super) fn get(&self, handle: u64) -> Option<&T> {
        self.places.get(self.index_of(handle)? as usize)?.value.as_ref()
    }

    /// `None`: it is not there, or not any more.
    #[inline]
    pub(super) fn take(&mut self, handle: u64) -> Option<T> {
        let index = self.index_of(handle)?;
        let value = self.places.get_mut(index as usize)?.value.take()?;
        self.free.push(index);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_back_is_not_taken_again() {
        let mut slab = Slab::new(2);
        let (first, second) = (slab.put('a').expect("room"), slab.put('b').expect("room"));
        assert_eq!((slab.put('c'), slab.is_full()), (None, true));
        assert_eq!((slab.take(first), slab.take(first)), (Some('a'), None));
        let third = slab.put('c').expect("room");
        assert_ne!(third, first);
        assert_eq!((slab.take(first), slab.get(third), slab.get(second)), (None, Some(&'c'), Some(&'b')));
        slab.grow(3);
        assert!(slab.put('d').is_some() && slab.put('e').is_none());
        assert_eq!(slab.take(u64::MAX), None);
    }
}
