//! Waiting on descriptors, with a way for another thread to end the wait. No reactor: each call polls its own few descriptors, and who
//! serves many connections polls one `Crowd`.
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use crate::net::admission::EXHAUSTED;
use crate::net::error::{Error, Result};

/// Most of a crowd that are returned at once; the others come with the next call.
const AT_ONCE: usize = 256;

/// Called when a wait is interrupted by a signal; an error ends the blocked call.
pub type Interrupt<'a> = &'a dyn Fn() -> Result<()>;

/// An interrupt hook that ignores signals.
pub fn ignore_signals() -> Result<()> {
    Ok(())
}

/// A flag with a descriptor that becomes readable when it is raised.
#[derive(Debug)]
pub struct Wake {
    descriptor: OwnedFd,
    raised: AtomicBool,
}

impl Wake {
    pub fn new() -> Result<Wake> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("no descriptor for a wait", error))?;
        Ok(Wake {
            descriptor,
            raised: AtomicBool::new(false),
        })
    }

    /// As `new`; without a descriptor wait for one, which comes when connections end.
    pub fn wait_for_one() -> Wake {
        loop {
            match Wake::new() {
                Ok(wake) => return wake,
                Err(_) => std::thread::sleep(EXHAUSTED),
            }
        }
    }

    /// Make waits return, now and until `lower`. Who raises what is up already makes no system call.
    ///
    /// So the one who lowers looks afterwards at all that it may have been raised for: what was raised meanwhile does not raise it again.
    pub fn raise(&self) {
        if self.raised.swap(true, Ordering::SeqCst) {
            return;
        }
        // The counter can't overflow: each write adds one, and a write that would block leaves it readable.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Whether it is raised.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Take the flag down; true if it was up.
    pub fn lower(&self) -> bool {
        let mut count = [0; 8];
        // Before the flag: raised between the two, it stays readable and the next wait returns for nothing. The other way round what was
        // raised between would be read, with the flag up, and nobody would write again.
        let _ = rustix::io::read(&self.descriptor, &mut count);
        self.raised.swap(false, Ordering::SeqCst)
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Wait until one of `descriptors` is ready, `limit` is over or a signal came; return how many are ready.
pub fn wait(
    descriptors: &mut [PollFd<'_>],
    limit: Option<Duration>,
    interrupt: Interrupt<'_>,
) -> Result<usize> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs().min(1 << 30) as i64,
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(descriptors, limit.as_ref()) {
        Ok(ready) => Ok(ready),
        Err(rustix::io::Errno::INTR) => interrupt().map(|()| 1),
        Err(error) => Err(Error::io("poll failed", error)),
    }
}

/// Shorthand for a descriptor to read from.
pub fn readable<'a>(descriptor: &'a impl AsFd) -> PollFd<'a> {
    PollFd::new(descriptor, PollFlags::IN)
}

/// Descriptors that are said once and watched until they are closed: a wait costs what is ready, however many there are.
///
/// It is itself a descriptor to poll, readable when one of them is ready. No descriptor in it may have a duplicate: the kernel watches until
/// the last one is closed.
#[derive(Debug)]
pub struct Crowd(OwnedFd);

impl Crowd {
    /// Make one with nobody in it.
    pub fn new() -> Result<Crowd> {
        epoll::create(epoll::CreateFlags::CLOEXEC)
            .map(Crowd)
            .map_err(|error| Error::io("no descriptor for waits", error))
    }

    /// Change what is awaited of a descriptor; `None`: nothing, not even its end.
    pub fn watch(
        &self,
        descriptor: &impl AsFd,
        key: u64,
        before: Option<PollFlags>,
        after: Option<PollFlags>,
    ) -> Result<()> {
        let data = epoll::EventData::new_u64(key);
        // The kernel has the same bits for both.
        let flags = |flags: PollFlags| epoll::EventFlags::from_bits_retain(flags.bits().into());
        match (before, after) {
            (before, after) if before == after => Ok(()),
            (None, Some(after)) => epoll::add(&self.0, descriptor, data, flags(after)),
            (Some(_), Some(after)) => epoll::modify(&self.0, descriptor, data, flags(after)),
            (_, None) => epoll::delete(&self.0, descriptor),
        }
        .map_err(|error| Error::io("a connection can't be watched", error))
    }

    /// Return what is ready now, of some at least: the key of each, and whether its other end has closed both directions.
    pub fn ready(&self) -> Result<Vec<(u64, bool)>> {
        let mut events = Vec::with_capacity(AT_ONCE);
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(
            &self.0,
            rustix::buffer::spare_capacity(&mut events),
            Some(&none),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("epoll failed", error)),
        }
        let told = events.iter().map(|event| {
            let flags = event.flags; // the kernel's struct is packed
            (event.data.u64(), flags.contains(epoll::EventFlags::HUP))
        });
        Ok(told.collect())
    }
}

impl AsFd for Crowd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that another process rings.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> std::io::Result<Bell> {
        Ok(Bell(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Wake its owner.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Take what was rung.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl From<OwnedFd> for Bell {
    fn from(descriptor: OwnedFd) -> Bell {
        Bell(descriptor)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Both sides go on as fast as they can: each way in which raising and lowering can meet comes about.
    #[test]
    fn the_one_who_lowers_it_misses_nothing_that_it_was_raised_for() {
        const EACH: usize = 50_000;
        const RAISERS: usize = 2;
        let (wake, heap) = (Wake::new().unwrap(), Mutex::new(0));
        std::thread::scope(|scope| {
            for _ in 0..RAISERS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        *heap.lock().unwrap() += 1;
                        wake.raise();
                    }
                });
            }
            let mut taken = 0;
            while taken < EACH * RAISERS {
                let limit = Some(Duration::from_secs(60));
                let ready = wait(&mut [readable(&wake)], limit, &ignore_signals).unwrap();
                assert_eq!(ready, 1, "nobody wakes whom {taken} have come to");
                wake.lower();
                taken += std::mem::take(&mut *heap.lock().unwrap());
            }
        });
    }

    #[test]
    fn what_is_raised_stays_up_until_it_is_lowered() {
        let wake = Wake::new().unwrap();
        let ready = || {
            wait(
                &mut [readable(&wake)],
                Some(Duration::ZERO),
                &ignore_signals,
            )
            .unwrap()
        };
        assert!(ready() == 0 && !wake.lower());
        wake.raise();
        wake.raise();
        assert!(ready() == 1 && wake.is_raised());
        assert!(wake.lower());
        assert!(ready() == 0 && !wake.is_raised());
        wake.raise();
        assert_eq!(ready(), 1);
    }
}
