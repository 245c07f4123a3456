//! The hashes on which servers, clients, auditors and checkpoints agree for ever: where a row lives, and what a stamp adds to a slot's sum.
//!
//! `mix` is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). None of this
//! keeps anybody out: ids are data of the job's own workers.

/// The golden ratio in 64 bits, by which a counter becomes a sequence.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Return a number in which each bit depends on each bit of `x`; no two numbers give the same.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Return the key of a table or variable: FNV-1a of its name, mixed.
pub fn key_of_name(name: &str) -> u64 {
    let fnv = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(fnv)
}

/// Return the hash of a row, given its table's key.
pub fn row(table: u64, id: u64) -> u64 {
    mix(id.wrapping_mul(GOLDEN) ^ table)
}

/// Return the slot of a row or a variable, one of `slots`, given its hash: the high bits decide, an index inside of a slot takes the low ones.
pub fn slot(hash: u64, slots: u32) -> u32 {
    ((u128::from(hash) * u128::from(slots)) >> 64) as u32
}

/// Return what a chunk adds to the sum of each slot that it is applied to (rule R29).
pub fn stamp(task: u64, chunk: u16) -> u128 {
    let low = mix(mix(task.wrapping_add(GOLDEN)) ^ u64::from(chunk));
    let high = mix(low.wrapping_add(GOLDEN));
    u128::from(high) << 64 | u128::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written down once: a checkpoint of today must be found by a server of tomorrow.
    #[test]
    fn hashes_never_change() {
        assert_eq!(mix(1), 0x5692_161d_100b_05e5);
        assert_eq!(slot(u64::MAX, 1024), 1023);
        assert_eq!(slot(0, 1024), 0);
        assert_eq!(slot(1 << 63, 1000), 500);
    }

    #[test]
    fn rows_spread_over_slots() {
        let table = key_of_name("users");
        let mut held = vec![0_u32; 64];
        for id in 0..64_000 {
            held[slot(row(table, id), 64) as usize] += 1;
        }
        // A thousand each on average, with a deviation of about 31.
        assert!(held.iter().all(|n| (800..1200).contains(n)), "{held:?}");
    }
}
