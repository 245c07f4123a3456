//! What a process does whose memory ends: it says so, and ends with an exit code by which the master knows why.
//!
//! Without this Rust aborts, and a process that was killed by SIGABRT tells nobody what to do about it.
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicI32, Ordering};

use pyo3::prelude::*;

/// Exit code, 0 for Rust's own way.
static CODE: AtomicI32 = AtomicI32::new(0);

struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

unsafe extern "C" {
    safe fn _exit(code: i32) -> !;
}

impl Memory {
    fn check(memory: *mut u8, size: usize) -> *mut u8 {
        let code = CODE.load(Ordering::Relaxed);
        if memory.is_null() && code != 0 {
            // Neither this nor `_exit` takes memory, or runs what others have left to be run.
            let _ = writeln!(stderr(), "out of memory: {size} bytes more can't be had");
            _exit(code);
        }
        memory
    }
}

// SAFETY: memory comes from `System` and goes back there, as it asks for it; what is added looks at no memory but the pointer's value.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to the contract, which is the same.
        Memory::check(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to the contract, which is the same.
        Memory::check(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps to the contract, which is the same.
        Memory::check(unsafe { System.realloc(memory, layout, size) }, size)
    }
}

#[pyfunction]
fn exit_without_memory(code: i32) {
    CODE.store(code, Ordering::Relaxed);
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(exit_without_memory, m)?)
}
