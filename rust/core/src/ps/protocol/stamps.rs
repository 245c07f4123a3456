//! Which chunks a slot holds: what makes a push that comes again, from any worker, harmless.
// What is read here comes from others.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
use crate::ps::memory::hash;
use crate::ps::protocol::bitmap::Bitmap;
use crate::ps::protocol::error::Malformed;

/// Whose gradient a push is: the task's place in the ledger, and the chunk in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub task: u64,
    pub chunk: u16,
}

/// What the auditor compares with the lines that workers have written (rule R29).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof {
    /// Pushes applied.
    pub count: u64,
    /// Wrapping sum of `hash::stamp` over them.
    pub sum: u128,
}

/// What a slot knows of a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Its task is below `low`: done, and forgotten.
    Closed,
    Held,
    Unknown,
}

/// The memory of one slot.
#[derive(Debug, Clone, Default)]
pub struct Stamps {
    roll_back: u64,
    /// The chunks held, of tasks from `low` on.
    chunks: Bitmap,
    proof: Proof,
}

/// Equal if they say the same, however it lies in memory.
impl PartialEq for Stamps {
    fn eq(&self, other: &Stamps) -> bool {
        let all = |stamps: &Stamps| {
            (
                stamps.low(),
                stamps.roll_back,
                stamps.proof,
                stamps.chunks.tasks(),
            )
        };
        all(self) == all(other)
    }
}

impl Eq for Stamps {}

impl Stamps {
    /// Return the first task of which anything is remembered.
    pub fn low(&self) -> u64 {
        self.chunks.low()
    }

    /// Return the roll-back that the slot's content comes from.
    pub fn roll_back(&self) -> u64 {
        self.roll_back
    }

    /// Return count and sum of what was applied.
    pub fn proof(&self) -> Proof {
        self.proof
    }

    /// Return count and sum of what was applied of the tasks that a position names: those before `low`, and those in `above`, ascending.
    ///
    /// Nothing of the tasks from `low` on may have been forgotten: the master sees to that while slots are cut.
    pub fn proof_at(&self, low: u64, above: &[u64]) -> Proof {
        let mut proof = self.proof;
        let tasks = self.chunks.tasks();
        let beyond = tasks
            .range(low..)
            .filter(|(task, _)| above.binary_search(task).is_err());
        for (task, words) in beyond {
            for chunk in held(words) {
                proof.count = proof.count.wrapping_sub(1);
                proof.sum = proof.sum.wrapping_sub(hash::stamp(*task, chunk));
            }
        }
        proof
    }

    /// Return the first task of which and of all later ones nothing is held.
    pub fn until(&self) -> u64 {
        let tasks = self.chunks.tasks();
        let last = tasks.last_key_value();
        last.map_or(self.low(), |(task, _)| task.saturating_add(1))
    }

    /// Forget all tasks and begin at this one: from now on numbers mean other tasks. What was applied stays counted.
    pub fn renumber(&mut self, low: u64) {
        self.chunks = Bitmap::new(low);
    }

    /// Return what is known of a stamp.
    pub fn look(&self, stamp: Stamp) -> Memory {
        if stamp.task < self.low() {
            Memory::Closed
        } else if self.chunks.holds(stamp) {
            Memory::Held
        } else {
            Memory::Unknown
        }
    }

    /// Remember a stamp that is applied now.
    pub fn add(&mut self, stamp: Stamp) {
        debug_assert_eq!(self.look(stamp), Memory::Unknown);
        self.chunks.add(stamp);
        // As the sum: what a forged snapshot says may be anything.
        self.proof.count = self.proof.count.wrapping_add(1);
        self.proof.sum = self
            .proof
            .sum
            .wrapping_add(hash::stamp(stamp.task, stamp.chunk));
    }

    /// Forget tasks below `low`, if that is from this roll-back or a later one (rule R10).
    pub fn raise(&mut self, low: u64, roll_back: u64) {
        if roll_back >= self.roll_back && low > self.low() {
            self.chunks.raise(low);
        }
    }

    /// Belong to a roll-back from now on: the content has been restored.
    pub fn restored(&mut self, roll_back: u64) {
        self.roll_back = roll_back;
    }

    /// Append it to `bytes`: low, roll-back, count, sum, number of tasks, and for each its number, words and bits; all u64, little endian.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let mut put = |number: u64| bytes.extend_from_slice(&number.to_le_bytes());
        put(self.low());
        put(self.roll_back);
        put(self.proof.count);
        put(self.proof.sum as u64);
        put((self.proof.sum >> 64) as u64);
        let tasks = self.chunks.tasks();
        put(tasks.len() as u64);
        for (task, words) in &tasks {
            put(*task);
            put(words.len() as u64);
            words.iter().for_each(|word| put(*word));
        }
    }

    /// Read what `encode` wrote, all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Stamps, Malformed> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut take = || words.next().ok_or(Malformed("a slot's memory is cut off"));
        let low = take()?;
        let mut stamps = Stamps {
            roll_back: take()?,
            chunks: Bitmap::new(low),
            proof: Proof {
                count: take()?,
                sum: u128::from(take()?) | u128::from(take()?) << 64,
            },
        };
        let mut before = None;
        for _ in 0..take()? {
            let (task, length) = (take()?, take()?);
            if task < low || before >= Some(task) || length > CHUNK_WORDS {
                return Err(Malformed(
                    "a slot's memory has tasks that are over, out of order or too long",
                ));
            }
            before = Some(task);
            let bits: Vec<u64> = (0..length).map(|_| take()).collect::<Result<_, _>>()?;
            if bits.last().is_none_or(|last| *last == 0) {
                return Err(Malformed(
                    "a slot's memory has a task with nothing at its end",
                ));
            }
            for chunk in held(&bits) {
                stamps.chunks.add(Stamp { task, chunk });
            }
        }
        if words.next().is_some() || !rest.is_empty() {
            return Err(Malformed("a slot's memory has more than it says"));
        }
        Ok(stamps)
    }
}

/// Words that the bits of all chunks of a task take.
const CHUNK_WORDS: u64 = (1 << 16) / 64;

/// Return the chunks whose bits are set in words.
fn held(words: &[u64]) -> impl Iterator<Item = u16> {
    let bits = words
        .iter()
        .flat_map(|word| (0..64).map(move |bit| word >> bit & 1 == 1));
    let chunks = (0..=u16::MAX).zip(bits);
    chunks.filter_map(|(chunk, is_held)| is_held.then_some(chunk))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_stamp_is_new_once(steps in prop::collection::vec((0_u64..20, 0_u16..200, 0_u64..25), 0..200)) {
            let (mut stamps, mut seen, mut low, mut sum) = (Stamps::default(), HashSet::new(), 0, 0_u128);
            for (task, chunk, next) in steps {
                let stamp = Stamp { task, chunk };
                let expected = match (task < low, seen.contains(&stamp)) {
                    (true, _) => Memory::Closed,
                    (_, true) => Memory::Held,
                    _ => Memory::Unknown,
                };
                prop_assert_eq!(stamps.look(stamp), expected);
                if expected == Memory::Unknown {
                    stamps.add(stamp);
                    seen.insert(stamp);
                    sum = sum.wrapping_add(hash::stamp(task, chunk));
                }
                if next.is_multiple_of(5) {
                    stamps.raise(next / 2, 0);
                    low = low.max(next / 2);
                }
                prop_assert_eq!(stamps.proof(), Proof { count: seen.len() as u64, sum });
                let past = seen.iter().filter(|one| one.task < low || one.task.is_multiple_of(3));
                let above: Vec<u64> = (low..20).filter(|task| task.is_multiple_of(3)).collect();
                let sum = past.clone().fold(0_u128, |sum, one| sum.wrapping_add(hash::stamp(one.task, one.chunk)));
                prop_assert_eq!(stamps.proof_at(low, &above), Proof { count: past.count() as u64, sum });
                let last = seen.iter().map(|one| one.task + 1).max().unwrap_or(0);
                prop_assert_eq!(stamps.until(), last.max(low));
                let mut bytes = Vec::new();
                stamps.encode(&mut bytes);
                prop_assert_eq!(&Stamps::decode(&bytes).unwrap(), &stamps);
            }
        }

        #[test]
        fn what_is_no_memory_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(stamps) = Stamps::decode(&bytes) {
                let mut again = Vec::new();
                stamps.encode(&mut again);
                prop_assert_eq!(again.len(), bytes.len());
            }
        }
    }

    #[test]
    fn what_is_renumbered_knows_no_task_and_keeps_its_account() {
        let mut stamps = Stamps::default();
        stamps.add(Stamp { task: 70, chunk: 1 });
        let proof = stamps.proof();
        stamps.renumber(10);
        assert_eq!(stamps.look(Stamp { task: 70, chunk: 1 }), Memory::Unknown);
        assert_eq!(stamps.look(Stamp { task: 9, chunk: 0 }), Memory::Closed);
        assert_eq!((stamps.proof(), stamps.until()), (proof, 10));
    }

    #[test]
    fn the_watermark_of_before_a_roll_back_closes_nothing() {
        let mut stamps = Stamps::default();
        stamps.restored(2);
        stamps.raise(10, 1);
        assert_eq!(stamps.low(), 0);
        stamps.raise(10, 2);
        assert_eq!(stamps.look(Stamp { task: 9, chunk: 0 }), Memory::Closed);
    }
}
