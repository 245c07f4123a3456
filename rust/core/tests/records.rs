//! Record files: whatever was written is read back in any order, and no damage goes unnoticed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use elasticdl_core::records::csv::{self, CsvFile, Header};
use elasticdl_core::records::lines::{self, LinesFile};
use elasticdl_core::records::recordio::{self, Compressor, RecordIoFile};
use elasticdl_core::records::tfrecord::{self, TFRecordFile, masked_crc};
use elasticdl_core::records::{Error, Stop};
use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;

fn place(content: &[u8]) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, content).unwrap();
    let index = folder.path().join("index");
    (folder, path, index)
}

fn encode(records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        let length = (record.len() as u64).to_le_bytes();
        bytes.extend(length);
        bytes.extend(masked_crc(&length).to_le_bytes());
        bytes.extend(record);
        bytes.extend(masked_crc(record).to_le_bytes());
    }
    bytes
}

fn quiet(_: u64, _: u64) -> Result<(), Stop> {
    Ok(())
}

fn open_tfrecord(path: &Path, index: &Path) -> Result<TFRecordFile, Error> {
    tfrecord::index(path, index, &mut quiet)?;
    TFRecordFile::open(path, index)
}

fn open_csv(path: &Path, index: &Path, header: Header) -> Result<CsvFile, Error> {
    csv::index(path, index, b',', &mut quiet)?;
    CsvFile::open(path, index, b',', header)
}

fn open_lines(path: &Path, index: &Path) -> Result<LinesFile, Error> {
    lines::index(path, index, &mut quiet)?;
    LinesFile::open(path, index)
}

/// Changes the offsets of an index, as somebody does who knows how to make its checksums right.
fn forge(index: &Path, change: impl FnOnce(&mut Vec<u64>)) {
    let mut bytes = fs::read(index).unwrap();
    let (header, rest) = bytes.split_at_mut(64);
    let words = rest.as_chunks::<8>().0.iter();
    let mut offsets: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    change(&mut offsets);
    let body: Vec<u8> = offsets
        .iter()
        .flat_map(|offset| offset.to_le_bytes())
        .collect();
    header[40..48].copy_from_slice(&(offsets.len() as u64 - 1).to_le_bytes());
    header[48..52].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    let crc = crc32c::crc32c(&header[..52]);
    header[52..56].copy_from_slice(&crc.to_le_bytes());
    let forged = [&*header, &body].concat();
    fs::write(index, forged).unwrap();
}

/// Makes other offsets of those of an index.
type Change = fn(&mut Vec<u64>);

fn three() -> Vec<Vec<u8>> {
    ["one", "two", "three"].map(|text| text.into()).to_vec()
}

#[test]
fn an_index_that_leaves_records_out_is_refused_and_made_anew() {
    let forgeries: [(&str, Change); 5] = [
        ("begin", |offsets| {
            offsets.remove(0);
        }),
        ("end", |offsets| {
            offsets.pop();
        }),
        ("end", |offsets| offsets.truncate(1)),
        ("out of order", |offsets| offsets.swap(1, 2)),
        ("end", |offsets| offsets.push(1 << 60)),
    ];
    for (why, change) in forgeries {
        let (_folder, path, index) = place(&encode(&three()));
        open_tfrecord(&path, &index).unwrap();
        forge(&index, change);
        let refused = TFRecordFile::open(&path, &index).err().unwrap();
        assert!(refused.to_string().contains(why), "{refused}");
        let file = open_tfrecord(&path, &index).unwrap();
        assert_eq!(file.read(&[0, 1, 2], None).unwrap(), three());
    }
}

#[test]
fn an_index_that_says_there_is_nothing_is_looked_at_again() {
    let (_folder, path, index) = place(b"a\nb\n");
    open_csv(&path, &index, Header::No).unwrap();
    forge(&index, |offsets| {
        offsets.drain(..2);
    });
    assert_eq!(open_csv(&path, &index, Header::No).unwrap().count(), 2);
    // A file may have content and no row.
    let (_folder, path, index) = place(b"\n\n\n");
    for _ in 0..2 {
        assert_eq!(open_csv(&path, &index, Header::No).unwrap().count(), 0);
    }
}

/// It is not synced before it is renamed: after a power cut any of its blocks may be missing under its name, or hold zeros.
#[test]
fn an_index_that_a_power_cut_has_left_is_made_anew() {
    let records = three();
    let (_folder, path, index) = place(&encode(&records));
    open_tfrecord(&path, &index).unwrap();
    let whole = fs::read(&index).unwrap();
    for at in 0..whole.len() {
        let zeros = |range: std::ops::Range<usize>| {
            let mut bytes = whole.clone();
            bytes[range].fill(0);
            bytes
        };
        let left = [
            whole[..at].to_vec(),
            zeros(at..whole.len()),
            zeros(0..at + 1),
        ];
        // The last number ends in zeros as it is.
        for bytes in left.into_iter().filter(|bytes| *bytes != whole) {
            fs::write(&index, &bytes).unwrap();
            assert!(TFRecordFile::open(&path, &index).is_err(), "{bytes:?}");
            let file = open_tfrecord(&path, &index).unwrap();
            assert_eq!(file.read(&[0, 1, 2], None).unwrap(), records);
            assert_eq!(fs::read(&index).unwrap(), whole);
        }
    }
}

/// Its bounds are right; that two records are called one must not pass for a record that is corrupt, which a job may skip.
#[test]
fn an_index_that_puts_records_together_or_apart_loses_none_silently() {
    let forgeries: [Change; 3] = [
        |offsets| {
            offsets.remove(1);
        },
        |offsets| offsets.insert(1, 1),
        |offsets| offsets.insert(1, offsets[1]),
    ];
    for change in forgeries {
        let (_folder, path, index) = place(&encode(&three()));
        open_tfrecord(&path, &index).unwrap();
        forge(&index, change);
        let file = TFRecordFile::open(&path, &index).unwrap();
        let all: Vec<u64> = (0..file.count()).collect();
        let refused = file.read_good(&all, None).err().unwrap();
        assert!(matches!(refused, Error::BadIndex { .. }), "{refused}");
    }
    let forgeries: [Change; 2] = [
        |offsets| {
            offsets.remove(1);
        },
        |offsets| offsets.insert(2, 3),
    ];
    for change in forgeries {
        let (_folder, path, index) = place(b"1\n22\n3\n");
        open_lines(&path, &index).unwrap();
        forge(&index, change);
        let file = LinesFile::open(&path, &index).unwrap();
        let all: Vec<u64> = (0..file.count()).collect();
        assert!(matches!(file.read(&all, None), Err(Error::BadIndex { .. })));
        let (_folder, path, index) = place(b"1\n22\n3\n");
        open_csv(&path, &index, Header::No).unwrap();
        forge(&index, change);
        let refused = CsvFile::open(&path, &index, b',', Header::No).and_then(|file| {
            let all: Vec<u64> = (0..file.count()).collect();
            file.read_good(&all, None).map(drop)
        });
        assert!(matches!(refused, Err(Error::BadIndex { .. })));
    }
}

#[test]
fn an_index_that_is_cut_or_changed_while_it_is_open_ends_in_an_error() {
    let records: Vec<_> = (0..50_000u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let (_folder, path, index) = place(&encode(&records));
    let file = open_tfrecord(&path, &index).unwrap();
    let good = fs::read(&index).unwrap();
    let mut wild = good.clone();
    wild[64..].fill(0xee);
    for bytes in [&good[..100], &wild] {
        fs::write(&index, bytes).unwrap();
        for asked in [&[49_999][..], &[9, 49_999], &[200, 201, 202]] {
            let refused = file.read(asked, None).unwrap_err();
            assert!(matches!(refused, Error::BadIndex { .. }), "{refused}");
        }
    }
}

#[test]
fn an_index_that_others_may_write_is_not_believed() {
    let (_folder, path, index) = place(&encode(&three()));
    open_tfrecord(&path, &index).unwrap();
    let mode = |bits| fs::set_permissions(&index, fs::Permissions::from_mode(bits)).unwrap();
    for bits in [0o646, 0o664] {
        mode(bits);
        let refused = TFRecordFile::open(&path, &index).err().unwrap();
        assert!(refused.to_string().contains("may write it"), "{refused}");
        assert_eq!(open_tfrecord(&path, &index).unwrap().count(), 3);
        let made = fs::metadata(&index).unwrap().permissions().mode();
        assert_eq!(made & 0o022, 0);
    }
}

#[test]
fn records_far_apart_are_found_as_those_together() {
    let records: Vec<_> = (0..50_000u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let (_folder, path, index) = place(&encode(&records));
    let file = open_tfrecord(&path, &index).unwrap();
    let asked = [49_999, 0, 25_000, 25_001, 0];
    let expected: Vec<_> = asked.map(|n| records[n as usize].clone()).to_vec();
    assert_eq!(file.read(&asked, None).unwrap(), expected);
    assert!(matches!(
        file.read(&[7, u64::MAX], None),
        Err(Error::NoSuchRecord { .. })
    ));
}

/// Two that index the same file at once, as masters of two jobs do: both have a whole index, in whichever order they write.
#[test]
fn two_writers_of_one_index_do_not_disturb_each_other() {
    let records: Vec<_> = (0..50_000u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let (folder, path, index) = place(&encode(&records));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(open_tfrecord(&path, &index).unwrap().count(), 50_000));
        }
    });
    let left = fs::read_dir(index.parent().unwrap()).unwrap();
    let hidden = left.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.')
    });
    assert_eq!(hidden.count(), 0);
    drop(folder);
}

const COMPRESSORS: [Compressor; 3] = [Compressor::None, Compressor::Snappy, Compressor::Gzip];

#[test]
fn a_chunk_that_becomes_too_long_is_corrupt() {
    // Gzip makes a thousandth of zeros: 300 MiB of them, in a chunk whose head and checksum are right.
    let level = flate2::Compression::default();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
    for _ in 0..300 {
        std::io::Write::write_all(&mut encoder, &[0; 1 << 20]).unwrap();
    }
    let packed = encoder.finish().unwrap();
    let mut crc = flate2::Crc::new();
    crc.update(&packed);
    let words = [recordio::MAGIC, crc.sum(), 2, packed.len() as u32, 1];
    let mut content: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    content.extend(packed);
    let (_folder, path, _) = place(&content);
    let file = RecordIoFile::open(&path).unwrap();
    let refused = file.read(0).unwrap_err().to_string();
    assert!(refused.contains("more than 256 MiB"), "{refused}");
}

#[test]
fn a_chunk_of_too_many_bytes_is_not_made() {
    let half = vec![0; recordio::LONGEST / 2];
    assert!(recordio::chunk(&[half.clone(), half.clone()], Compressor::Snappy).is_none());
    assert!(recordio::chunk(&[half], Compressor::Snappy).is_some());
}

#[test]
fn a_line_that_never_ends_is_corrupt() {
    let (_folder, path, index) = place(b"one\n");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((64 << 20) + 10).unwrap(); // a hole
    let refused = open_lines(&path, &index).err().unwrap().to_string();
    assert!(refused.contains("record 1 of"), "{refused}");
    assert!(refused.contains("longer than 64 MiB"), "{refused}");
}

#[test]
fn lines_of_a_file_that_changes_are_no_records() {
    let (_folder, path, index) = place(b"one\ntwo\n");
    let file = open_lines(&path, &index).unwrap();
    assert!(matches!(
        file.read(&[2], None),
        Err(Error::NoSuchRecord { .. })
    ));
    fs::write(&path, b"one\ntwo\nthree\n").unwrap();
    assert!(matches!(file.read(&[0], None), Err(Error::Changed { .. })));
    assert!(matches!(
        LinesFile::open(&path, &index),
        Err(Error::Changed { .. })
    ));
    assert_eq!(open_lines(&path, &index).unwrap().count(), 3);
}

proptest! {
    #[test]
    fn chunks_are_read_back_and_no_damage_goes_unnoticed(
        chunks in vec((vec(vec(any::<u8>(), 0..40), 0..12), prop::sample::select(&COMPRESSORS[..])), 1..5),
        at in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        bit in 0..8,
    ) {
        let content: Vec<u8> = chunks
            .iter()
            .flat_map(|(records, compressor)| recordio::chunk(records, *compressor).unwrap())
            .collect();
        let read = |content: &[u8]| {
            let (_folder, path, _) = place(content);
            let file = RecordIoFile::open(&path)?;
            let counts = file.chunks();
            let all = (0..counts.len()).map(|number| file.read(number));
            Ok::<_, Error>((counts, all.collect::<Result<Vec<_>, _>>()?))
        };
        let (counts, all) = read(&content).unwrap();
        let expected: Vec<_> = chunks.into_iter().map(|(records, _)| records).collect();
        prop_assert_eq!(counts, expected.iter().map(|records| records.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(&all, &expected);
        let mut damaged = content.clone();
        damaged[at.index(content.len())] ^= 1_u8 << bit;
        // Nothing may be compressed in any way.
        if let Ok((_, same)) = read(&damaged) {
            prop_assert_eq!(&same, &expected);
        }
        // A file that is cut between two chunks is a file.
        let short = &content[..cut.index(content.len())];
        if let Ok((_, fewer)) = read(short) {
            prop_assert_eq!(&fewer[..], &expected[..fewer.len()]);
        }
    }

    #[test]
    fn lines_are_those_that_are_not_blank(
        texts in vec("[ a-c\t]{0,6}", 0..40),
        end in prop::sample::select(vec!["\n", "\r\n"]),
        mark in any::<bool>(),
        last in any::<bool>(),
    ) {
        let mut text = if mark { "\u{feff}".to_string() } else { String::new() };
        text.push_str(&texts.join(end));
        if last {
            text.push_str(end);
        }
        let (_folder, path, index) = place(text.as_bytes());
        let file = open_lines(&path, &index).unwrap();
        let expected: Vec<_> = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
        let all: Vec<u64> = (0..file.count()).rev().collect();
        let mut found = file.read(&all, None).unwrap();
        found.reverse();
        prop_assert_eq!(found, expected.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>());
        let few = [all.len() as u64];
        let beyond = matches!(file.read(&few, None), Err(Error::NoSuchRecord { .. }));
        prop_assert!(beyond);
    }

    #[test]
    fn tfrecords_are_read_back_in_any_order(
        records in vec(vec(any::<u8>(), 0..40), 1..20),
        order in vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let (_folder, path, index) = place(&encode(&records));
        let file = open_tfrecord(&path, &index).unwrap();
        prop_assert_eq!(file.count(), records.len() as u64);
        let order: Vec<usize> = order.iter().map(|pick| pick.index(records.len())).collect();
        let asked: Vec<u64> = order.iter().map(|&i| i as u64).collect();
        let expected: Vec<Vec<u8>> = order.iter().map(|&i| records[i].clone()).collect();
        prop_assert_eq!(&file.read(&asked, None).unwrap(), &expected);
        // The same out of bytes that were read at once, whatever part of the file they are, and of bytes in memory.
        let (begin, end) = asked.split_first().map_or((0, 0), |(first, rest)| (*first, rest.len() as u64));
        for span in [file.span(0, file.count()), file.span(begin, end)] {
            prop_assert_eq!(&file.read(&asked, span.as_ref()).unwrap(), &expected);
        }
        let within = TFRecordFile::within(&path, Box::new(encode(&records))).unwrap();
        prop_assert_eq!(within.read(&asked, None).unwrap(), expected);
    }

    #[test]
    fn a_changed_byte_of_a_tfrecord_file_never_gives_wrong_data(
        records in vec(vec(any::<u8>(), 0..20), 1..8),
        at in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let mut bytes = encode(&records);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let (_folder, path, index) = place(&bytes);
        match open_tfrecord(&path, &index) {
            // A damaged length.
            Err(error) => {
                prop_assert!(matches!(error, Error::Corrupt { .. } | Error::Truncated { .. }), "{}", error);
                let within = TFRecordFile::within(&path, Box::new(bytes)).err().unwrap();
                prop_assert_eq!(within.to_string(), error.to_string());
            }
            // Damaged data: exactly that record is bad.
            Ok(file) => {
                let asked: Vec<u64> = (0..file.count()).collect();
                let (good, bad) = file.read_good(&asked, None).unwrap();
                prop_assert_eq!(bad.len(), 1);
                let mut expected = records.clone();
                expected.remove(bad[0].0 as usize);
                prop_assert_eq!(good, expected);
                let error = file.read(&asked, None).unwrap_err().to_string();
                prop_assert_eq!(bad[0].1.to_string(), error.clone());
                let span = file.span(0, file.count());
                let within = TFRecordFile::within(&path, Box::new(bytes)).unwrap();
                for other in [file.read(&asked, span.as_ref()), within.read(&asked, None)] {
                    prop_assert_eq!(other.unwrap_err().to_string(), error.clone());
                }
            }
        }
    }

    #[test]
    fn a_cut_tfrecord_file_is_refused_unless_cut_between_records(
        records in vec(vec(any::<u8>(), 0..20), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = encode(&records);
        let cut = cut.index(bytes.len());
        let (_folder, path, index) = place(&bytes[..cut]);
        let whole = (0..records.len()).find(|&n| encode(&records[..n]).len() == cut);
        match (open_tfrecord(&path, &index), whole) {
            (Ok(file), Some(count)) => prop_assert_eq!(file.count(), count as u64),
            (Err(Error::Truncated { offset, left, .. }), None) => prop_assert_eq!(offset + left, cut as u64),
            (outcome, _) => prop_assert!(false, "{:?}", outcome.err()),
        }
    }

    #[test]
    fn a_damaged_index_is_refused_and_made_anew(
        at in any::<prop::sample::Index>(),
        flip in 1..=255u8,
        cut in any::<bool>(),
    ) {
        let records = vec![b"one".to_vec(), b"two".to_vec()];
        let (_folder, path, index) = place(&encode(&records));
        open_tfrecord(&path, &index).unwrap();
        let mut bytes = fs::read(&index).unwrap();
        let at = at.index(56);
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip }
        fs::write(&index, &bytes).unwrap();
        prop_assert!(TFRecordFile::open(&path, &index).is_err());
        let file = open_tfrecord(&path, &index).unwrap();
        prop_assert_eq!(file.read(&[1, 0], None).unwrap(), vec![b"two".to_vec(), b"one".to_vec()]);
    }

    #[test]
    fn csv_rows_are_read_back(
        rows in (1..5usize).prop_flat_map(|columns| vec(vec("[a-z0-9 ,;\"\r\nä€\u{feff}]{0,6}", columns), 1..12)),
        line_end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        last_line_end in any::<bool>(),
        mark in any::<bool>(),
    ) {
        let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
        let lines: Vec<String> = rows.iter().map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(",")).collect();
        let mut text = String::from(if mark { "\u{feff}" } else { "" });
        text.push_str(&lines.join(line_end));
        if last_line_end {
            text.push_str(line_end);
        }
        let (_folder, path, index) = place(text.as_bytes());
        let file = open_csv(&path, &index, Header::No).unwrap();
        let asked: Vec<u64> = (0..rows.len() as u64).rev().collect();
        let mut expected = rows.clone();
        expected.reverse();
        prop_assert_eq!(file.count(), rows.len() as u64);
        let span = file.span(0, file.count());
        let within = CsvFile::within(&path, Box::new(text.into_bytes()), b',', Header::No).unwrap();
        for read in [file.read(&asked, None), file.read(&asked, span.as_ref()), within.read(&asked, None)] {
            prop_assert_eq!(fields(&read.unwrap()), &expected[..]);
        }
    }

    #[test]
    fn rows_fetched_one_by_one_are_those_of_one_pass(text in "[ab,\"\r\n]{0,30}") {
        let (_folder, path, index) = place(text.as_bytes());
        let Ok(file) = open_csv(&path, &index, Header::No) else { return Ok(()) };
        let asked: Vec<u64> = (0..file.count()).collect();
        let (good, bad) = file.read_good(&asked, None).unwrap();
        let whole = one_pass(text.as_bytes());
        prop_assert_eq!(whole.len(), asked.len());
        let columns = file.columns();
        let expected: Vec<Vec<String>> = whole.iter().filter(|row| row.len() == columns).cloned().collect();
        prop_assert_eq!(bad.len(), whole.len() - expected.len());
        prop_assert_eq!(fields(&good), expected);
    }

    #[test]
    fn no_bytes_make_the_csv_reader_panic(bytes in vec(any::<u8>(), 0..200)) {
        let (_folder, path, index) = place(&bytes);
        if let Ok(file) = open_csv(&path, &index, Header::Auto) {
            let asked: Vec<u64> = (0..file.count()).collect();
            file.read_good(&asked, None).unwrap();
        }
    }
}

fn fields(rows: &[csv::Row]) -> Vec<Vec<String>> {
    let of_row = |row: &csv::Row| row.fields().map(str::to_owned).collect();
    rows.iter().map(of_row).collect()
}

/// Parses a whole text in one go.
fn one_pass(text: &[u8]) -> Vec<Vec<String>> {
    let mut reader = csv_core::Reader::new();
    let (mut out, mut ends) = (vec![0; text.len() + 1], vec![0; text.len() + 1]);
    let (mut input, mut rows) = (text, Vec::new());
    loop {
        let (mut written, mut fields) = (0, 0);
        loop {
            let (result, read, wrote, ended) =
                reader.read_record(input, &mut out[written..], &mut ends[fields..]);
            input = &input[read..];
            written += wrote;
            fields += ended;
            match result {
                csv_core::ReadRecordResult::Record => break,
                csv_core::ReadRecordResult::End => return rows,
                _ => {}
            }
        }
        let mut begin = 0;
        rows.push(
            ends[..fields]
                .iter()
                .map(|&end| {
                    String::from_utf8(out[std::mem::replace(&mut begin, end)..end].to_vec())
                        .unwrap()
                })
                .collect(),
        );
    }
}

/// What is read at once is bounded: a task of many or of long records is read record by record.
#[test]
fn only_what_is_worth_it_is_read_at_once() {
    let read_at_once = |records: &[Vec<u8>]| {
        let (_folder, path, index) = place(&encode(records));
        let file = open_tfrecord(&path, &index).unwrap();
        let span = file.span(0, file.count());
        span.map(|span| span.length())
    };
    let short = vec![vec![1; 1000]; 100];
    assert_eq!(read_at_once(&short), Some(encode(&short).len()));
    assert_eq!(read_at_once(&short[..1]), None);
    assert_eq!(read_at_once(&vec![vec![1; 20_000]; 3]), None);
    assert_eq!(read_at_once(&vec![vec![1; 1000]; 5000]), None);

    let (_folder, path, index) = place(&encode(&short));
    let file = open_tfrecord(&path, &index).unwrap();
    for (first, end) in [(0, 101), (7, 7), (8, 7), (100, 102), (0, u64::MAX)] {
        assert!(file.span(first, end).is_none());
    }
}

#[test]
fn a_file_that_changes_is_noticed() {
    let (_folder, path, index) = place(&encode(&[b"one".to_vec(), b"two".to_vec()]));
    let file = open_tfrecord(&path, &index).unwrap();
    fs::write(
        &path,
        encode(&[b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]),
    )
    .unwrap();
    assert!(matches!(file.read(&[0], None), Err(Error::Changed { .. })));
    assert!(matches!(
        TFRecordFile::open(&path, &index),
        Err(Error::Changed { .. })
    ));
    assert_eq!(open_tfrecord(&path, &index).unwrap().count(), 3);
}

#[test]
fn a_file_replaced_with_its_times_kept_is_noticed() {
    let (_folder, path, index) = place(&encode(&[b"one".to_vec(), b"two".to_vec()]));
    open_tfrecord(&path, &index).unwrap();
    let changed = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, encode(&[b"six".to_vec(), b"ten".to_vec()])).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(changed)
        .unwrap();
    assert!(matches!(
        TFRecordFile::open(&path, &index),
        Err(Error::Changed { .. })
    ));
}

#[test]
fn errors_name_the_place() {
    let mut bytes = encode(&[b"one".to_vec(), b"two".to_vec()]);
    bytes[19 + 13] ^= 1;
    let (_folder, path, index) = place(&bytes);
    let error = open_tfrecord(&path, &index)
        .unwrap()
        .read(&[1], None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(path.to_str().unwrap())
            && error.contains("record 1 ")
            && error.contains("byte 19"),
        "{error}"
    );

    let (_folder, path, index) = place(b"a,b\r\n1,\"x\r\ny\"\r\n\r\n3\r\n\xff,5\r\n");
    let file = open_csv(&path, &index, Header::Auto).unwrap();
    let ragged = file.read(&[1], None).unwrap_err().to_string();
    assert!(
        ragged.contains("record 1 ") && ragged.contains("line 5") && ragged.contains("1 fields"),
        "{ragged}"
    );
    let text = file.read(&[2], None).unwrap_err().to_string();
    assert!(
        text.contains("record 2 ") && text.contains("line 6") && text.contains("0xff"),
        "{text}"
    );
    let missing = file.read(&[3], None).unwrap_err().to_string();
    assert!(missing.contains("has 3 records; record 3"), "{missing}");
}

#[test]
fn a_quote_that_is_never_closed_is_refused() {
    let (_folder, path, index) = place(b"a,b\n1,\"2\n3,4\n");
    let error = open_csv(&path, &index, Header::Yes)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("byte 4") && error.contains("quote"),
        "{error}"
    );
    assert!(!index.exists());
}

#[test]
fn the_header_rule() {
    for (text, header) in [
        ("a,b\n1,2\n", true),
        ("a,2\n1,2\n", false),
        ("a,\n1,2\n", false),
        ("1e3,x\n1,2\n", false),
        ("a b, c\n", true),
    ] {
        let (_folder, path, index) = place(text.as_bytes());
        let file = open_csv(&path, &index, Header::Auto).unwrap();
        assert_eq!(file.header().is_some(), header, "{text}");
        assert_eq!(
            open_csv(&path, &index, Header::Yes)
                .unwrap()
                .header()
                .unwrap()
                .len(),
            2
        );
        assert!(
            open_csv(&path, &index, Header::No)
                .unwrap()
                .header()
                .is_none()
        );
    }
}

#[test]
fn a_scan_tells_its_progress_and_can_be_stopped() {
    let records = vec![vec![7; 1 << 20]; 40];
    let (folder, path, index) = place(&encode(&records));
    let mut told = Vec::new();
    tfrecord::index(&path, &index, &mut |done, total| {
        told.push((done, total));
        Ok(())
    })
    .unwrap();
    let size = fs::metadata(&path).unwrap().len();
    assert!(
        told.len() >= 3 && told.iter().is_sorted() && told.last() == Some(&(size, size)),
        "{told:?}"
    );

    fs::remove_file(&index).unwrap();
    let stopped = tfrecord::index(&path, &index, &mut |_, _| Err(Stop));
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing stays behind"
    );
}

#[test]
fn an_index_that_cannot_be_written_says_so() {
    let (folder, path, _) = place(&encode(&[b"one".to_vec()]));
    let outcome = tfrecord::index(&path, &folder.path().join("missing/index"), &mut quiet);
    assert!(matches!(outcome, Err(Error::IndexUnwritable { .. })));
}
