//! Which chunks of tasks a slot holds, one bit for each. There is one bitmap for each slot, so it has to be small, and found without a
//! search.
//!
//! Tasks from the first one on that is not done lie in groups of eight: a group has a byte for each chunk, of which each task has a bit. A
//! stamp that would make this much larger than what is in it lies in a tree: of a task far from the others, or far into its task.
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
use std::collections::BTreeMap;

use crate::ps::protocol::stamps::Stamp;

/// Tasks of a group.
const GROUP: u64 = 8;
/// Bytes that a bitmap may have with nothing in it, and for each chunk in it.
const LEAST: usize = 64;
const FOR_EACH: usize = 16;
/// What the allocator gives anyway: memory is taken in multiples of it.
const STEP: usize = 16;

/// The chunks of tasks from `low` on.
#[derive(Debug, Clone, Default)]
pub(super) struct Bitmap {
    low: u64,
    /// Bytes of a group: chunks of a task, so far.
    width: usize,
    /// The groups, the first one with `low`.
    groups: Vec<u8>,
    /// Chunks in the groups.
    count: usize,
    /// Words of bits of all other chunks, by task.
    others: BTreeMap<u64, Vec<u64>>,
}

impl Bitmap {
    /// Hold nothing yet of the tasks from `low` on.
    pub(super) fn new(low: u64) -> Bitmap {
        Bitmap {
            low,
            ..Bitmap::default()
        }
    }

    /// Return the first task of which chunks are held.
    pub(super) fn low(&self) -> u64 {
        self.low
    }

    /// Tell whether a chunk is held.
    pub(super) fn holds(&self, stamp: Stamp) -> bool {
        let byte = self.place(stamp, self.width);
        let byte = byte.and_then(|at| self.groups.get(at));
        if byte.is_some_and(|byte| byte & bit(stamp.task) != 0) {
            return true;
        }
        // Mostly there are none.
        !self.others.is_empty() && {
            let words = self.others.get(&stamp.task);
            let word = words.and_then(|words| words.get(usize::from(stamp.chunk / 64)));
            word.is_some_and(|word| word >> (stamp.chunk % 64) & 1 == 1)
        }
    }

    /// Hold a chunk that is not held yet, of a task from `low` on.
    pub(super) fn add(&mut self, stamp: Stamp) {
        if let Some(byte) = self.room(stamp) {
            *byte |= bit(stamp.task);
            self.count = self.count.saturating_add(1);
            return;
        }
        put(&mut self.others, stamp);
    }

    /// Forget all tasks before `low`, which is not before the present one.
    pub(super) fn raise(&mut self, low: u64) {
        let passed = usize::try_from((low / GROUP).saturating_sub(self.low / GROUP));
        let passed = passed.unwrap_or(usize::MAX).saturating_mul(self.width);
        let gone = self.groups.drain(..passed.min(self.groups.len()));
        let mut gone: usize = gone.map(|byte| byte.count_ones() as usize).sum();
        for byte in self.groups.iter_mut().take(self.width) {
            let kept = *byte & (u8::MAX << (low % GROUP));
            gone = gone.saturating_add((*byte ^ kept).count_ones() as usize);
            *byte = kept;
        }
        self.count = self.count.saturating_sub(gone);
        if !self.others.is_empty() {
            self.others = self.others.split_off(&low);
        }
        self.low = low;
    }

    /// Return the chunks that are held, as words of bits of each task that has any; no task's last word is zero.
    pub(super) fn tasks(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut all = self.others.clone();
        let first = self.low.saturating_sub(self.low % GROUP);
        let groups = self.groups.chunks(self.width.max(1));
        for (group, bytes) in (0_u64..).zip(groups) {
            for (chunk, byte) in (0..=u16::MAX).zip(bytes) {
                for task in (0..GROUP).filter(|task| byte & bit(*task) != 0) {
                    let task = first
                        .saturating_add(group.saturating_mul(GROUP))
                        .saturating_add(task);
                    put(&mut all, Stamp { task, chunk });
                }
            }
        }
        all
    }

    /// Return the place of a chunk's byte, if groups have so many bytes.
    fn place(&self, stamp: Stamp, width: usize) -> Option<usize> {
        let chunk = usize::from(stamp.chunk);
        let group = (stamp.task / GROUP).checked_sub(self.low / GROUP)?;
        let group = usize::try_from(group).ok().filter(|_| chunk < width)?;
        group.checked_mul(width)?.checked_add(chunk)
    }

    /// Return a chunk's byte, if there is room for it or it may be made.
    fn room(&mut self, stamp: Stamp) -> Option<&mut u8> {
        let width = self.width.max(usize::from(stamp.chunk).saturating_add(1));
        let at = self.place(stamp, width)?;
        let (wide, long) = (width > self.width, at >= self.groups.len());
        if wide || long {
            let groups = self.groups.len().checked_div(self.width).unwrap_or(0);
            let groups = groups.max(at.checked_div(width)?.saturating_add(1));
            let size = groups.checked_mul(width)?;
            if size > LEAST.saturating_add(self.count.saturating_mul(FOR_EACH)) {
                return None;
            }
            if wide {
                let mut wider = Vec::with_capacity(size.next_multiple_of(STEP));
                for group in self.groups.chunks(self.width.max(1)) {
                    wider.extend_from_slice(group);
                    wider.resize(wider.len().next_multiple_of(width), 0);
                }
                (self.groups, self.width) = (wider, width);
            }
            let more = size
                .next_multiple_of(STEP)
                .saturating_sub(self.groups.len());
            self.groups.reserve_exact(more);
            self.groups.resize(size, 0);
        }
        self.groups.get_mut(at)
    }
}

/// Set the bit of a chunk.
fn put(tasks: &mut BTreeMap<u64, Vec<u64>>, stamp: Stamp) {
    let words = tasks.entry(stamp.task).or_default();
    let at = usize::from(stamp.chunk / 64);
    if words.len() <= at {
        words.resize(at.saturating_add(1), 0);
    }
    if let Some(word) = words.get_mut(at) {
        *word |= 1 << (stamp.chunk % 64);
    }
}

fn bit(task: u64) -> u8 {
    1 << (task % GROUP)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    impl Bitmap {
        fn bytes(&self) -> usize {
            self.groups.capacity()
        }
    }

    proptest! {
        /// Mostly of few chunks of near tasks, and now and then of one far off.
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((0_u64..4, prop_oneof![8 => 0_u16..12, 1 => any::<u16>()], 0_u64..40), 0..400)) {
            let (mut bitmap, mut set, mut low, mut most) = (Bitmap::default(), BTreeSet::new(), 0, 0);
            for (step, (raised, chunk, ahead)) in steps.into_iter().enumerate() {
                if raised == 0 {
                    low += ahead / 8;
                    bitmap.raise(low);
                    set.retain(|one: &Stamp| one.task >= low);
                }
                let far = if step % 50 == 49 { u64::MAX - 1000 } else { 0 };
                let stamp = Stamp { task: low + ahead + far, chunk };
                prop_assert_eq!(bitmap.holds(stamp), set.contains(&stamp));
                if set.insert(stamp) {
                    bitmap.add(stamp);
                }
                prop_assert!(bitmap.holds(stamp));
                let mut tasks = BTreeMap::new();
                set.iter().for_each(|stamp| put(&mut tasks, *stamp));
                prop_assert_eq!(bitmap.tasks(), tasks);
                most = most.max(set.len());
                prop_assert!(bitmap.bytes() <= LEAST + FOR_EACH * most);
            }
        }
    }

    /// The tasks of a hundred workers, two each, of eight chunks: all are held by each of 1,024 slots.
    #[test]
    fn a_chunk_takes_little_more_than_a_bit_of_each_slot() {
        let mut bitmap = Bitmap::default();
        for task in 0..2000_u64 {
            bitmap.raise(task.saturating_sub(200));
            for chunk in 0..8 {
                bitmap.add(Stamp { task, chunk });
            }
            let chunks = 8 * (task + 1).min(201) as usize;
            if chunks > 1000 {
                let bytes = bitmap.bytes() as f64 * 1024.0 / chunks as f64;
                assert!(
                    (128.0..160.0).contains(&bytes),
                    "{bytes} bytes a chunk of all slots"
                );
            }
            assert!(bitmap.others.is_empty());
        }
    }
}
