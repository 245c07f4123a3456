//! Every reader, without a connection: what is damaged is refused, whatever the bytes, and the corpus is read.
use std::path::PathBuf;

use elasticdl_core::ps::protocol::catalog::Catalog;
use elasticdl_core::ps::protocol::steps::{Confirmed, Need};
use elasticdl_core::ps::protocol::wire::{Ask, Known, Pull};
use elasticdl_core::ps::server::data::Pace;
use elasticdl_core::ps::server::slot::{Head, UNSEEN};
use elasticdl_core::ps::server::snapshot;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::damage::{damage, do_damage};
use crate::messages::{ask, message, sections};
use crate::readers::{ALL, SLOTS, What, catalog, read, read_words};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_written_is_read((what, words) in message()) {
        // Nothing that a push could change is no push.
        let is_empty = what == What::Push && words.get(3) == Some(&2) && words[4..] == [0, 1];
        prop_assert!(is_empty || read_words(what, &words), "{what:?}");
    }

    #[test]
    fn damaged_messages_are_read_or_refused((what, mut words) in message(), damages in prop::collection::vec(damage(), 1..4)) {
        for damage in &damages {
            do_damage(&mut words, damage);
        }
        read_words(what, &words);
    }

    #[test]
    fn a_message_that_was_cut_off_is_refused(mut words in ask(), at: Index) {
        words.truncate(at.index(words.len()));
        prop_assert!(Ask::read(&words, &catalog()).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(which in 0..=What::Push as u8, mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        bytes.insert(0, which);
        read(&bytes);
    }

    #[test]
    fn small_numbers_are_read_or_refused(which in 0..=What::Push as u8, halves in prop::collection::vec(0_u32..7, 0..80)) {
        let mut bytes = vec![which];
        bytes.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
        read(&bytes);
    }
}

#[test]
fn an_answer_larger_than_a_message_is_not_asked_for() {
    let catalog = catalog();
    // Each time that a variable is named it comes whole.
    let known = Known {
        variable: 0,
        primary_epoch: 0,
        version: 0,
    };
    let ask = |times| Ask {
        head: Head {
            seen: UNSEEN,
            stamp: None,
            low: 0,
            roll_back: 0,
            pace: Pace { rate: 0.0, step: 0 },
        },
        chunk: None,
        need: Need::default(),
        confirmed: Confirmed::default(),
        pulls: vec![Pull {
            slot: 0,
            term: 1,
            dense: vec![known; times],
            ..Pull::default()
        }],
        pushes: vec![],
    };
    assert!(Ask::read(&ask(1_000_000).words(), &catalog).is_ok());
    let error = Ask::read(&ask(8_000_000).words(), &catalog).unwrap_err();
    assert!(
        error.to_string().contains("more than one message"),
        "{error}"
    );
}

#[test]
fn the_corpus_is_read() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut seen = [0; ALL.len()];
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let is_message = read(&bytes);
        let name = path.file_name().unwrap().to_string_lossy();
        let is_refused = name.starts_with("refused");
        // Rows are read as answers to one question, which those of the corpus need not be.
        let is_any = name == "rows";
        assert!(is_any || is_message != is_refused, "{name}");
        if let Some(count) = bytes
            .first()
            .and_then(|which| seen.get_mut(usize::from(*which)))
        {
            *count += 1;
        }
    }
    let without: Vec<What> = ALL
        .into_iter()
        .filter(|what| seen[*what as usize] == 0)
        .collect();
    assert!(without.is_empty(), "no files for the readers {without:?}");
}

#[test]
fn a_slot_of_another_model_or_another_slot_is_refused() {
    let (words, sections) = sections(&(0..60).collect::<Vec<_>>());
    let one = sections[1];
    let of_slot = &words[one.offset as usize / 8..][..one.length as usize / 8];
    assert!(snapshot::take(of_slot, 1, &catalog()).is_ok());
    let error = snapshot::take(of_slot, 2, &catalog()).unwrap_err();
    assert_eq!(error.to_string(), "it is another slot");
    let other = Catalog::new(
        3,
        SLOTS,
        vec![catalog().tables()[1].clone()],
        vec![],
        catalog().rule(),
        0.0,
    );
    for (slot, one) in (0..).zip(&sections) {
        let of_slot = &words[one.offset as usize / 8..][..one.length as usize / 8];
        assert!(snapshot::take(of_slot, slot, &other).is_err());
    }
}
