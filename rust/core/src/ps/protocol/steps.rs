//! Which steps of synchronous accumulation are complete (rules A1 to A3): what each side knows of the chunks that are settled everywhere.
//!
//! A step is complete when all of its chunks are settled on all servers. Which chunks it has is arithmetic that workers do: a pull names what
//! must be settled before its rows may be read. Confirmations say how far each task is; each side that hears one keeps it and passes it on.
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

use crate::net::sink::Sink;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::words::Reader;

/// Chunks of a task that is settled whole.
pub const WHOLE: u16 = u16::MAX;
/// Tasks that a step may have at most.
const TASKS: u64 = 1 << 16;

/// What must be settled before rows of a step may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Of the step: so many steps are complete then.
    pub number: u64,
    /// Of each task from `first` on and before `end` the first `chunks` chunks are settled.
    pub first: u64,
    pub end: u64,
    pub chunks: u16,
}

impl Need {
    /// Append it: number, first, end, chunks.
    pub fn write(&self, words: &mut impl Sink) {
        words.extend_from_slice(&[self.number, self.first, self.end, self.chunks.into()]);
    }

    /// Read what `write` wrote.
    pub fn read(reader: &mut Reader<'_>) -> Result<Need, Malformed> {
        let [number, first, end, chunks] = *reader.array()?;
        let need = Need {
            number,
            first,
            end,
            chunks: u16::try_from(chunks)
                .map_err(|_| Malformed("a step needs more chunks than there are"))?,
        };
        if need
            .end
            .checked_sub(need.first)
            .is_none_or(|tasks| tasks > TASKS)
        {
            return Err(Malformed("a step has more tasks than there can be"));
        }
        if need.number > 0 && (need.first == need.end || need.chunks == 0) {
            return Err(Malformed("nothing would have to be settled before a step"));
        }
        Ok(need)
    }
}

/// How far tasks are settled on all servers, as far as somebody knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confirmed {
    /// What was confirmed before a roll-back means nothing after it.
    roll_back: u64,
    /// So many steps are complete.
    steps: u64,
    /// All tasks before are settled whole.
    low: u64,
    /// Of others, so many chunks are.
    tasks: BTreeMap<u64, u16>,
}

impl Confirmed {
    /// Know nothing in a roll-back.
    pub fn new(roll_back: u64) -> Confirmed {
        Confirmed {
            roll_back,
            ..Confirmed::default()
        }
    }

    /// Return the roll-back that it belongs to.
    pub fn roll_back(&self) -> u64 {
        self.roll_back
    }

    /// Return the number after the last task of which it says anything.
    pub fn end(&self) -> u64 {
        let last = self.tasks.last_key_value();
        last.map_or(self.low, |(task, _)| task.saturating_add(1).max(self.low))
    }

    /// Return how many steps are complete.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Take note that so many chunks of a task are settled; tell whether that is new.
    pub fn confirm(&mut self, task: u64, chunks: u16) -> bool {
        if task < self.low || chunks == 0 {
            return false;
        }
        let known = self.tasks.entry(task).or_default();
        let is_new = *known < chunks;
        *known = chunks.max(*known);
        is_new
    }

    /// Take note that all tasks before this one are settled whole; tell whether that is new.
    pub fn raise_low(&mut self, low: u64) -> bool {
        let is_new = low > self.low;
        if is_new {
            self.low = low;
            self.tasks = self.tasks.split_off(&low);
        }
        is_new
    }

    /// Take note that so many steps are complete; tell whether that is new.
    pub fn raise_steps(&mut self, steps: u64) -> bool {
        let is_new = steps > self.steps;
        self.steps = steps.max(self.steps);
        is_new
    }

    /// Learn what another knows; tell whether anything of it is new.
    pub fn merge(&mut self, other: &Confirmed) -> bool {
        if other.roll_back < self.roll_back {
            return false;
        }
        if other.roll_back > self.roll_back {
            *self = other.clone();
            return true;
        }
        let mut is_new = self.raise_low(other.low);
        is_new |= self.raise_steps(other.steps);
        for (task, chunks) in &other.tasks {
            is_new |= self.confirm(*task, *chunks);
        }
        is_new
    }

    /// Return it with a watermark that is no higher than this.
    pub fn held_to(&self, low: u64) -> Confirmed {
        Confirmed {
            low: self.low.min(low),
            ..self.clone()
        }
    }

    /// Tell whether a step's rows may be read; its number is known to be reached then.
    pub fn meets(&mut self, need: &Need) -> bool {
        let settled = |task: u64| self.tasks.get(&task).copied().unwrap_or(0);
        let is_met = need.number <= self.steps
            || (need.first.max(self.low)..need.end).all(|task| settled(task) >= need.chunks);
        if is_met {
            self.raise_steps(need.number);
        }
        is_met
    }

    /// Append it: roll-back, steps, low, number of tasks, and of each its number and chunks.
    pub fn write(&self, words: &mut impl Sink) {
        words.extend_from_slice(&[
            self.roll_back,
            self.steps,
            self.low,
            self.tasks.len() as u64,
        ]);
        for (task, chunks) in &self.tasks {
            words.extend_from_slice(&[*task, u64::from(*chunks)]);
        }
    }

    /// Return how many words it takes.
    pub fn room(&self) -> usize {
        self.tasks.len().saturating_mul(2).saturating_add(4)
    }

    /// Read what `write` wrote.
    pub fn read(reader: &mut Reader<'_>) -> Result<Confirmed, Malformed> {
        let [roll_back, steps, low, tasks] = *reader.array()?;
        let mut confirmed = Confirmed {
            roll_back,
            steps,
            low,
            tasks: BTreeMap::new(),
        };
        for _ in 0..tasks {
            let [task, chunks] = *reader.array()?;
            let chunks = u16::try_from(chunks)
                .map_err(|_| Malformed("more chunks are settled than there are"))?;
            confirmed.confirm(task, chunks);
        }
        Ok(confirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(number: u64, tasks: std::ops::Range<u64>, chunks: u16) -> Need {
        Need {
            number,
            first: tasks.start,
            end: tasks.end,
            chunks,
        }
    }

    #[test]
    fn a_step_is_complete_when_all_its_tasks_are_so_far() {
        let mut known = Confirmed::new(0);
        assert!(known.meets(&need(0, 0..0, 0)));
        assert!(!known.meets(&need(1, 0..2, 1)));
        assert!(known.confirm(0, 1) && !known.confirm(0, 1));
        assert!(!known.meets(&need(1, 0..2, 1)));
        // A task with a single chunk has no part in later steps.
        assert!(known.confirm(1, WHOLE));
        assert!(known.meets(&need(1, 0..2, 1)));
        assert!(known.confirm(0, 2) && known.meets(&need(2, 0..2, 2)));
        assert!(!known.meets(&need(3, 0..2, WHOLE)));
        assert!(known.raise_low(2) && known.meets(&need(3, 0..2, WHOLE)));
        assert_eq!((known.steps(), known.tasks.len()), (3, 0));
    }

    #[test]
    fn a_step_that_would_wait_for_nothing_is_malformed() {
        let read = |need: Need| {
            let mut words = Vec::new();
            need.write(&mut words);
            Need::read(&mut Reader::new(&words)).is_ok()
        };
        assert!(read(need(0, 0..0, 0)) && read(need(3, 0..2, 1)));
        assert!(!read(need(3, 2..2, WHOLE)) && !read(need(3, 0..2, 0)));
    }

    #[test]
    fn what_is_heard_is_kept_and_passed_on_but_not_over_a_roll_back() {
        let mut known = Confirmed::new(1);
        known.confirm(5, 3);
        let mut other = Confirmed::new(1);
        assert!(other.merge(&known) && !other.merge(&known));
        let mut words = Vec::new();
        other.write(&mut words);
        assert_eq!(words.len(), other.room());
        assert_eq!(Confirmed::read(&mut Reader::new(&words)).unwrap(), known);
        other.raise_steps(9);
        assert!(!Confirmed::new(2).merge(&other));
        let later = Confirmed::new(2);
        assert!(other.merge(&later));
        assert_eq!(other, later);
    }
}
