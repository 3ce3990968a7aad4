//! The handler and its installation.

use super::{MAX_NAME_BYTES, MappedRegion, OnceLock, Ordering, find_region};
use std::io;
use std::mem::MaybeUninit;

const MESSAGE: &[u8] = b": the file became shorter while it was read, or its disk fails; copy it \
    again and let nothing write to it meanwhile\n";

/// Name of the program, and the previous signal action.
static PREVIOUS_ACTION: OnceLock<(&'static str, libc::sigaction)> = OnceLock::new();

pub(in crate::map) fn install(program: &'static str) -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros are a valid `sigaction`: no handler, no flags, and `sa_mask` is set by
    // `sigemptyset` below. Both pointers are to values of this function. The handler has the
    // signature of SA_SIGINFO and is async-signal-safe.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        libc::sigemptyset(&raw mut action.sa_mask);
        // Rust's threads have one.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_bus_error;
        action.sa_sigaction = handler as usize;
        // It must be known before the handler can run.
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        if PREVIOUS_ACTION.set((program, before.assume_init())).is_ok()
            && libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Names the file and ends the process, or restores the previous action.
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some((program, before)) = PREVIOUS_ACTION.get() else {
        return;
    };
    // SAFETY: with SA_SIGINFO the system passes a valid `info`, and SIGBUS has an address if
    // raised by a fault. All functions called here (`write`, `_exit`, `sigaction`, `raise`) are
    // async-signal-safe; everything read is atomic or was set before the handler could run.
    unsafe {
        let raised = (*info).si_code > 0;
        if raised && let Some(region) = find_region((*info).si_addr() as usize) {
            let mut line = [0; MAX_NAME_BYTES + 256];
            let length = write_line(program, region, &mut line);
            // An error cannot be reported.
            let _ = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), length);
            libc::_exit(1);
        }
        libc::sigaction(signal, before, std::ptr::null_mut());
        if !raised {
            // Sent by a process, hence not repeated by itself.
            libc::raise(signal);
        }
    }
}

fn write_line(program: &str, region: &MappedRegion, line: &mut [u8]) -> usize {
    let name = region.name[..region.length.load(Ordering::Relaxed).min(MAX_NAME_BYTES)].iter();
    let name = name.map(|byte| byte.load(Ordering::Relaxed));
    let words = program.bytes().chain(*b": error: ").chain(name);
    let all = words.chain(MESSAGE.iter().copied());
    let mut length = 0;
    for (to, byte) in line.iter_mut().zip(all) {
        *to = byte;
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests;
