//! Pseudo-random numbers (splitmix64) that depend only on the seed. Therefore a run can be
//! repeated.

/// A stream of pseudo-random numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a stream from the seed and a purpose. Each purpose has its own stream. If the code
    /// draws more numbers from one stream, the numbers of the other streams do not change.
    pub fn new(seed: u64, purpose: &[u64]) -> Self {
        let mut random = Self(seed);
        for part in purpose {
            random.0 = random.next().wrapping_add(*part);
        }
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.next() % (last - first + 1)
    }

    /// Returns true with a probability of `percent`.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last_index in (1..items.len()).rev() {
            let other_index = usize::try_from(self.next() % (last_index as u64 + 1)).unwrap();
            items.swap(last_index, other_index);
        }
    }
}
