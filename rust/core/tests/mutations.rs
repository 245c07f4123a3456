//! The corpus, damaged in a few places, is read or refused: a few thousand inputs on every run, and with another seed each time for as long as
//! `FUZZ_SECONDS` says for each reader (`make fuzz`). An input that fails is written to the corpus.
mod readers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::prelude::RngCore;
use proptest::test_runner::{RngAlgorithm, TestRng};
use readers::{ALL, What, read};

/// Inputs for all readers together.
const CASES: u64 = 4000;

struct Draw(TestRng);

impl Draw {
    fn new(seed: u64) -> Draw {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Draw(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    /// Return a number below this one.
    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end.max(1) as u64) as usize
    }

    fn some(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; 1 + self.below(most)];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Change bytes behind the first, which says who reads them, in a few places.
    fn damage(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        const LIES: [u64; 8] = [0, 1, 2, 255, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];
        for _ in 0..=self.below(4) {
            let at = 1 + self.below(bytes.len());
            let at = at.min(bytes.len());
            match self.below(8) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 if at < bytes.len() => bytes[at] = self.0.next_u64() as u8,
                3 => {
                    let lie = LIES[self.below(LIES.len())].to_le_bytes();
                    let aligned = 1 + (at - 1) / 4 * 4;
                    let room = bytes.iter_mut().skip(aligned).zip(lie);
                    let width = [4, 8][self.below(2)];
                    room.take(width).for_each(|(byte, lie)| *byte = lie);
                }
                4 => {
                    let more = self.some(16);
                    bytes.splice(at..at, more);
                }
                5 => {
                    let end = (at + 1 + self.below(64)).min(bytes.len());
                    bytes.extend_from_within(at..end);
                }
                6 => {
                    let end = (at + 1 + self.below(16)).min(bytes.len());
                    bytes.drain(at..end);
                }
                _ => {
                    let from = self.below(other.len());
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[from..]);
                }
            }
        }
    }
}

#[test]
fn damaged_corpus_is_read_or_refused() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let corpus: Vec<Vec<u8>> = files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    let seconds = std::env::var("FUZZ_SECONDS").ok();
    let limit = seconds.map(|seconds| Duration::from_secs(seconds.parse().expect("seconds")));
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut seed = limit.map_or(0, |_| since.as_nanos() as u64);
    for what in ALL {
        let own: Vec<&Vec<u8>> = corpus.iter().filter(|one| is_for(one, what)).collect();
        assert!(!own.is_empty(), "the corpus has nothing for {what:?}");
        let (start, mut number) = (Instant::now(), 0);
        while limit.map_or(number < CASES / ALL.len() as u64, |limit| {
            start.elapsed() < limit
        }) {
            let mut draw = Draw::new(seed);
            (seed, number) = (seed.wrapping_add(1), number + 1);
            let mut bytes = own[draw.below(own.len())].clone();
            let other = &corpus[draw.below(corpus.len())];
            draw.damage(&mut bytes, other);
            if catch_unwind(AssertUnwindSafe(|| read(&bytes))).is_err() {
                let kept = folder.join(format!("refused-{:08x}", crc32c::crc32c(&bytes)));
                std::fs::write(&kept, &bytes).unwrap();
                panic!("the input is kept as {}", kept.display());
            }
        }
        println!("{what:?}: {number} inputs, all read or refused");
    }
}

/// Whether a file of the corpus is for a reader.
fn is_for(bytes: &[u8], what: What) -> bool {
    bytes.first() == Some(&(what as u8))
}
