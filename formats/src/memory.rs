//! Returns freed memory to the operating system.

/// Returns freed memory to the system with GNU's C library, whose allocator keeps it in the heap of
/// every thread. Does nothing with others.
pub fn release_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` touches memory that the allocator holds free, under the allocator's own
    // locks, and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
