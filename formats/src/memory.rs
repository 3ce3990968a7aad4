//! Memory that was freed, back to the system.

/// Returns freed memory to the system, with the C library of GNU; others need no help, and nothing
/// happens.
///
/// GNU's allocator keeps what large matrices leave behind in the heap of every thread, several times
/// the memory in use.
pub fn release_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` touches memory that the allocator holds free, under the allocator's own
    // locks, and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
