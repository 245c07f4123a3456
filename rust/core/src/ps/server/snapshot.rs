//! Slots in a file: what a server writes of the slots that it is asked to cut, and what a slot is restored from.
//!
//! A file has one section after the other, each of one slot, in words of 8 bytes (little endian): format, slot, version, words of the
//! memory of stamps and these (`stamps`), then pieces as a copy has them (`data`), each with its number of words before it, and a zero.
//! Where a section lies, and the CRC32C of its bytes, is returned and belongs into the snapshot's manifest: without that a file is not
//! read. So a file that was cut off or is another one's is never taken for a slot.
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
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::stamps::{Proof, Stamps};
use crate::ps::protocol::words::Reader;
use crate::ps::server::data::Data;
use crate::ps::server::node::Node;

/// `EDLSLOT` and the format's number.
const FORMAT: u64 = u64::from_le_bytes(*b"EDLSLOT\x02");
/// Largest section, in bytes: what a slot of a huge table may have, and no more.
const LARGEST: u64 = 64 << 30;

/// After so many bytes the disk is asked to begin with them: it writes while the next slots are copied, and the sync at the end has less to
/// wait for.
const BEHIND: u64 = 8 << 20;

/// Where a slot lies in a file, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Section {
    pub slot: u32,
    pub offset: u64,
    /// In bytes.
    pub length: u64,
    pub crc: u32,
    pub version: u64,
    pub low: u64,
    /// The first task of which and of all later ones it holds nothing.
    pub until: u64,
    pub rows: u64,
    /// What was applied of the tasks of the position.
    pub proof: Proof,
}

/// The tasks that were done when a snapshot was begun.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Position {
    /// All before are.
    pub low: u64,
    /// And these beyond, ascending.
    pub above: Vec<u64>,
}

/// Why a slot can't be restored.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("it can't be read: {0}")]
    Io(#[from] io::Error),
    #[error("its checksum differs from the manifest's: the file was changed or cut off")]
    Checksum,
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

/// Write the slots of a node, each with the primary epoch that it is expected to have, to a new file; slots of another primary epoch are left out.
///
/// Each slot is locked only while it is copied into memory. The file is synced; after an error nothing of it is left.
pub fn write(
    node: &Node,
    path: &Path,
    slots: &[(u32, u64)],
    position: &Position,
) -> io::Result<Vec<Section>> {
    let file = File::create_new(path)?;
    let written = write_sections(node, file, slots, position);
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

fn write_sections(
    node: &Node,
    mut file: File,
    slots: &[(u32, u64)],
    position: &Position,
) -> io::Result<Vec<Section>> {
    let (mut sections, mut words) = (Vec::new(), Vec::new());
    let (mut offset, mut begun) = (0_u64, 0_u64);
    for (slot, primary_epoch) in slots {
        let cut = node.look(*slot, |one| {
            // What is kept for a step is in no snapshot, and so its slot is not either (rule A6).
            let data = one
                .cut(*primary_epoch)
                .filter(|data| !data.lags(u64::MAX))?;
            words.clear();
            put(data, node.catalog(), *slot, &mut words);
            let stamps = &data.stamps;
            let section = Section {
                slot: *slot,
                version: data.version,
                low: stamps.low(),
                until: stamps.until(),
                rows: data.rows() as u64,
                proof: stamps.proof_at(position.low, &position.above),
                ..Section::default()
            };
            Some(section)
        });
        let Some(section) = cut.flatten() else {
            continue;
        };
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        file.write_all(bytes)?;
        let length = bytes.len() as u64;
        sections.push(Section {
            offset,
            length,
            crc: crc32c::crc32c(bytes),
            ..section
        });
        offset = offset.saturating_add(length);
        let behind = offset.saturating_sub(begun);
        if behind >= BEHIND {
            // Only an advice: the sync is what counts.
            let _ = fadvise(&file, begun, NonZeroU64::new(behind), Advice::DontNeed);
            begun = offset;
        }
    }
    file.sync_all()?;
    Ok(sections)
}

/// Append a slot as a file has it.
pub(super) fn put(data: &Data, catalog: &Catalog, slot: u32, words: &mut Vec<u64>) {
    let mut stamps = Vec::new();
    data.stamps.encode(&mut stamps);
    words.extend([
        FORMAT,
        u64::from(slot),
        data.version,
        (stamps.len() / 8) as u64,
    ]);
    words.extend(
        stamps
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word)),
    );
    let mut cursor = data.cursor();
    while let Some(piece) = data.piece(catalog, &mut cursor) {
        words.push(piece.len() as u64);
        words.extend(piece);
    }
    words.push(0);
}

/// Read a slot from where the manifest says that it is.
pub fn read(path: &Path, section: &Section, catalog: &Catalog) -> Result<Data, Unreadable> {
    if !section.length.is_multiple_of(8) || section.length > LARGEST {
        return Err(Malformed("a section's length in the manifest can't be").into());
    }
    let file = File::open(path)?;
    if section.offset.saturating_add(section.length) > file.metadata()?.len() {
        return Err(Unreadable::Checksum);
    }
    let mut words = vec![0_u64; (section.length / 8) as usize];
    file.read_exact_at(bytemuck::cast_slice_mut(&mut words), section.offset)?;
    if crc32c::crc32c(bytemuck::cast_slice(&words)) != section.crc {
        return Err(Unreadable::Checksum);
    }
    Ok(take(&words, section.slot, catalog)?)
}

/// Read a slot from the words of its section.
pub fn take(words: &[u64], slot: u32, catalog: &Catalog) -> Result<Data, Malformed> {
    let mut reader = Reader::new(words);
    if reader.word()? != FORMAT {
        return Err(Malformed("it is no slot of this format"));
    }
    if reader.word()? != u64::from(slot) {
        return Err(Malformed("it is another slot"));
    }
    let mut data = Data::new(catalog);
    data.version = reader.word()?;
    let length = usize::try_from(reader.word()?).map_err(|_| Malformed("its memory is endless"))?;
    data.stamps = Stamps::decode(bytemuck::cast_slice(reader.words(length)?))?;
    loop {
        let length =
            usize::try_from(reader.word()?).map_err(|_| Malformed("a piece is endless"))?;
        if length == 0 {
            reader.end()?;
            return Ok(data);
        }
        data.take(catalog, reader.words(length)?)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ps::memory::initial::Initial;
    use crate::ps::memory::optimizer::Rule;
    use crate::ps::protocol::catalog::{Table, Variable};
    use crate::ps::protocol::numbers::Numbers;
    use crate::ps::protocol::part::{Dense, Part, Rows};
    use crate::ps::protocol::placement::Entry;
    use crate::ps::protocol::stamps::Stamp;
    use crate::ps::server::data::Pace;
    use crate::ps::server::node::Bounds;
    use crate::ps::server::slot::{Answer, Head, UNSEEN};

    const SLOTS: u32 = 4;

    fn catalog() -> Catalog {
        let initial = Initial::Uniform {
            low: -1.0,
            high: 1.0,
        };
        let table = |name: &str, width, admission| Table {
            name: name.into(),
            width,
            initial,
            admission,
            decays: true,
        };
        let variable = Variable {
            name: "kernel".into(),
            length: 70_000,
            decays: false,
            adds: false,
        };
        let rule = Rule::Adagrad {
            initial_accumulator: 0.1,
            epsilon: 1e-7,
        };
        Catalog::new(
            5,
            SLOTS,
            vec![table("a", 3, 1), table("b", 2, 2)],
            vec![variable],
            rule,
            0.0,
        )
    }

    /// Return a node that has been pushed a few rows of each table, and its first primary epoch's entries.
    fn node(ids: &[u64]) -> Node {
        let node = Node::new(0, catalog());
        node.bound(&Bounds::NONE);
        let entry = Entry {
            term: 1,
            primary_epoch: 1,
            primary: 0,
            backup: None,
            restored: 0,
        };
        node.learn((0..SLOTS).map(|slot| (slot, entry)))
            .expect("an entry");
        let kernel = vec![0.5; 70_000];
        for (task, id) in ids.iter().enumerate() {
            for slot in 0..SLOTS {
                let gradients = [1.0, 2.0, *id as f32];
                let mut part = Part::default();
                let own = [*id];
                for (table, width) in [(0, 3), (1, 2)] {
                    if node.catalog().slot_of_row(table, *id) == slot {
                        let gradients = &gradients[..width];
                        part.rows.push(Rows {
                            table,
                            ids: &own,
                            gradients: Numbers::Long(gradients),
                        });
                    }
                }
                if node.catalog().slot_of_variable(0) == slot {
                    let numbers = Numbers::Long(&kernel);
                    part.dense.push(Dense {
                        variable: 0,
                        is_first: true,
                        numbers,
                    });
                    part.dense.push(Dense {
                        variable: 0,
                        is_first: false,
                        numbers,
                    });
                }
                let mut words = Vec::new();
                part.write(&mut words);
                let head = Head {
                    seen: UNSEEN,
                    stamp: Some(Stamp {
                        task: task as u64,
                        chunk: 3,
                    }),
                    low: task as u64 / 2,
                    roll_back: 0,
                    pace: Pace { rate: 0.1, step: 7 },
                };
                let answer = node.pushes().push(slot, &head, 1, (&words).into(), 0);
                assert!(
                    matches!(answer, Some(Answer::Applied | Answer::Held)),
                    "{answer:?}"
                );
            }
        }
        node
    }

    fn all(data: &Data) -> (Vec<f32>, Option<Vec<f32>>, u64, Stamps, usize) {
        let catalog = catalog();
        let mut rows = vec![0.0; 40 * 5];
        let ids: Vec<u64> = (0..40).collect();
        data.pull(&catalog, 0, &ids, &mut rows[..120]);
        data.pull(&catalog, 1, &ids, &mut rows[120..]);
        let kernel = data
            .variable(&catalog, 0)
            .map(|(weights, _)| weights.to_vec());
        (rows, kernel, data.version, data.stamps.clone(), data.rows())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn a_slot_is_read_as_it_was_written(ids in prop::collection::vec(0_u64..40, 1..30)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("slots");
            let node = node(&ids);
            let slots: Vec<(u32, u64)> = (0..SLOTS).map(|slot| (slot, 1)).collect();
            let sections = write(&node, &path, &slots, &Position::default()).unwrap();
            prop_assert_eq!(sections.len(), SLOTS as usize);
            for section in &sections {
                let read = read(&path, section, node.catalog()).unwrap();
                let there = node.look(section.slot, |slot| all(slot.data().unwrap())).unwrap();
                prop_assert_eq!(all(&read), there);
            }
        }

        #[test]
        fn what_is_no_slot_is_refused(at in 0_usize..2000, bit in 0_u8..8) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("slots");
            let node = node(&[1, 2, 3, 4, 5, 6, 7, 8, 1, 2]);
            let mut section = write(&node, &path, &[(0, 1)], &Position::default()).unwrap()[0];
            let mut bytes = std::fs::read(&path).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).unwrap();
            prop_assert!(matches!(read(&path, &section, node.catalog()), Err(Unreadable::Checksum)));
            // A forger of the checksum, too, gets a slot or an error, and no more.
            section.crc = crc32c::crc32c(&bytes);
            let _ = read(&path, &section, node.catalog());
        }
    }

    #[test]
    fn another_primary_epoch_is_left_out_and_a_file_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots");
        let node = node(&[1, 2, 3]);
        let nothing = Position::default();
        let written = write(&node, &path, &[(0, 1), (1, 2)], &nothing).unwrap();
        assert_eq!(written.len(), 1);
        let error = write(&node, &path, &[(0, 1)], &nothing).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        std::fs::write(&path, b"short").unwrap();
        assert!(matches!(
            read(
                &path,
                &Section {
                    length: 8,
                    ..Section::default()
                },
                node.catalog()
            ),
            Err(Unreadable::Checksum)
        ));
    }
}
