//! All readers of what parameter servers are sent or given; the first byte says which (`core/tests/readers`).
#![no_main]

#[path = "../../core/tests/readers/mod.rs"]
#[allow(dead_code)]
mod readers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    readers::read(bytes);
});
