//! SIGBUS handler for truncated mapped files and failing disks.
//!
//! Mappings are registered in a list whose nodes are never freed and use only atomics, so that a
//! signal handler may walk it at any time.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::escape::escape;

const MAX_NAME_BYTES: usize = 512;

/// Registers one mapping at a time.
#[derive(Debug)]
pub(super) struct MappedRegion {
    taken: AtomicBool,
    start: AtomicUsize,
    /// One past the last address; 0 without a mapping.
    end: AtomicUsize,
    name: [AtomicU8; MAX_NAME_BYTES],
    length: AtomicUsize,
    next: OnceLock<Box<MappedRegion>>,
}

static FIRST_REGION: MappedRegion = MappedRegion::new();

impl MappedRegion {
    const fn new() -> MappedRegion {
        MappedRegion {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            name: [const { AtomicU8::new(0) }; MAX_NAME_BYTES],
            length: AtomicUsize::new(0),
            next: OnceLock::new(),
        }
    }

    pub(super) fn add(path: &Path, bytes: &[u8]) -> &'static MappedRegion {
        let mut region: &'static MappedRegion = &FIRST_REGION;
        while region
            .taken
            .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            region = region.next.get_or_init(|| Box::new(MappedRegion::new()));
        }
        let text = path.to_string_lossy();
        let text = escape(&text);
        // The end of the name distinguishes files.
        let mut cut = text.len().saturating_sub(MAX_NAME_BYTES);
        while !text.is_char_boundary(cut) {
            cut += 1;
        }
        let kept = &text.as_bytes()[cut..];
        for (to, byte) in region.name.iter().zip(kept) {
            to.store(*byte, Ordering::Relaxed);
        }
        region.length.store(kept.len(), Ordering::Relaxed);
        let start = bytes.as_ptr() as usize;
        region.start.store(start, Ordering::Relaxed);
        // Release ordering publishes the other fields.
        region.end.store(start + bytes.len(), Ordering::Release);
        region
    }

    pub(super) fn remove(&self) {
        self.end.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    fn contains(&self, address: usize) -> bool {
        let end = self.end.load(Ordering::Acquire);
        (self.start.load(Ordering::Relaxed)..end).contains(&address)
    }
}

#[cfg_attr(not(unix), allow(dead_code, reason = "nobody asks"))]
fn find_region(address: usize) -> Option<&'static MappedRegion> {
    let mut region = &FIRST_REGION;
    loop {
        if region.contains(address) {
            return Some(region);
        }
        region = region.next.get()?;
    }
}

#[cfg(unix)]
pub(super) use handler::install;

#[cfg(unix)]
mod handler;
