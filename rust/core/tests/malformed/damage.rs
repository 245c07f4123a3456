//! Messages as they should not be: what may happen to one.
use proptest::prelude::*;
use proptest::sample::Index;

/// What may happen to a message.
#[derive(Debug, Clone)]
pub enum Damage {
    Cut(Index),
    Flip(Index, u32),
    /// A number of something that is not there.
    Lie(Index, u64),
    LieInHalf(Index, bool, u32),
    More(Vec<u64>),
    Twice(Index),
}

pub fn damage() -> impl Strategy<Value = Damage> {
    let lies = prop_oneof![
        Just(u64::MAX),
        Just(1 << 63),
        Just(u64::from(u32::MAX)),
        Just(1 << 61),
        Just(1 << 16),
        0_u64..300
    ];
    let halves = prop_oneof![Just(u32::MAX), Just(1 << 31), Just(1 << 30), 0_u32..300];
    prop_oneof![
        any::<Index>().prop_map(Damage::Cut),
        (any::<Index>(), 0_u32..64).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (any::<Index>(), lies).prop_map(|(at, word)| Damage::Lie(at, word)),
        (any::<Index>(), any::<bool>(), halves)
            .prop_map(|(at, high, half)| Damage::LieInHalf(at, high, half)),
        prop::collection::vec(any::<u64>(), 1..4).prop_map(Damage::More),
        any::<Index>().prop_map(Damage::Twice),
    ]
}

pub fn do_damage(words: &mut Vec<u64>, damage: &Damage) {
    let place = |at: &Index| (!words.is_empty()).then(|| at.index(words.len()));
    match damage {
        Damage::Cut(at) => {
            if let Some(at) = place(at) {
                words.truncate(at);
            }
        }
        Damage::Flip(at, bit) => {
            if let Some(at) = place(at) {
                words[at] ^= 1 << bit;
            }
        }
        Damage::Lie(at, word) => {
            if let Some(at) = place(at) {
                words[at] = *word;
            }
        }
        Damage::LieInHalf(at, high, half) => {
            if let Some(at) = place(at) {
                let shift = if *high { 32 } else { 0 };
                words[at] = words[at] & !(0xffff_ffff << shift) | u64::from(*half) << shift;
            }
        }
        Damage::More(more) => words.extend(more),
        Damage::Twice(from) => {
            if let Some(from) = place(from) {
                words.extend_from_within(from..);
            }
        }
    }
}
