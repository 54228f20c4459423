//! Copies that survive memory which is not there: a fault within such a copy ends it. For a device in
//! software, whose user may unmap memory that is registered; a NIC answers that with a status.
//!
//! The kernel reports a fault as SIGSEGV or SIGBUS. [`install`] sets a handler for both that looks at the
//! faulting instruction only: within the copy routine, which touches nothing but the two ranges, it goes on
//! at the routine's end. Every other fault goes to the handler that was there before. A handler that the
//! program sets later replaces this one. Without `install` these are plain copies.

#![allow(unsafe_code)]

use crate::Errno;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);

/// Whether [`install`] was called.
// HOT
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Copies `len` bytes, which may overlap. False: a part of a range is not mapped, or not for this access;
/// some bytes may have been copied. Without [`install`] that crashes.
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, but for pages that are gone.
// HOT
#[inline(always)]
#[must_use]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
    if is_on() {
        // SAFETY: the caller's promise.
        return unsafe { guarded(from, to, len) };
    }
    // SAFETY: the caller's promise, and without a guard all pages are there.
    unsafe { std::ptr::copy(from, to, len) };
    true
}

#[inline(never)]
unsafe fn guarded(from: *const u8, to: *mut u8, len: usize) -> bool {
    const CHUNK: usize = 4096;
    // Forwards, unless bytes would be overwritten before they are read.
    if to.addr().wrapping_sub(from.addr()) >= len {
        // SAFETY: the caller's promise.
        return unsafe { arch::copy(from, to, len) };
    }
    let mut chunk = [0u8; CHUNK];
    let mut left = len;
    while left > 0 {
        let n = left.min(CHUNK);
        left -= n;
        // SAFETY: inside the ranges, and `chunk` has room.
        let read = unsafe { arch::copy(from.wrapping_add(left), chunk.as_mut_ptr(), n) };
        // SAFETY: as above.
        if !read || !unsafe { arch::copy(chunk.as_ptr(), to.wrapping_add(left), n) } {
            return false;
        }
    }
    true
}

/// Guards all copies of this process from now on. Later calls do nothing.
pub fn install() -> Result<(), Errno> {
    arch::install()?;
    ON.store(true, Relaxed);
    Ok(())
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod arch {
    use crate::Errno;

    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
        // SAFETY: the caller's promise; nothing guards copies on this machine.
        unsafe { std::ptr::copy(from, to, len) };
        true
    }

    pub fn install() -> Result<(), Errno> {
        Err(Errno(libc::ENOSYS))
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod arch {
    use crate::Errno;
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::sync::OnceLock;

    // Copies rdx bytes from rsi to rdi; returns 1 in eax. Nothing but the two ranges is touched, and the
    // stack stays as it was, so that `ucs_guarded_copy_fault` can return from anywhere within.
    core::arch::global_asm!(
        ".pushsection .text.ucs_guarded_copy,\"ax\",@progbits",
        ".globl ucs_guarded_copy, ucs_guarded_copy_fault",
        ".hidden ucs_guarded_copy, ucs_guarded_copy_fault",
        ".type ucs_guarded_copy,@function",
        ".p2align 5",
        "ucs_guarded_copy:",
        ".cfi_startproc",
        "cmp rdx, 16",
        "jb 3f",
        // The last bytes are read first, as the target may overlap them, and written last.
        "movups xmm4, [rsi + rdx - 16]",
        "lea r8, [rdi + rdx - 16]",
        "cmp rdx, 64",
        "jb 2f",
        "1:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "jae 1b",
        "2:",
        "cmp rdx, 16",
        "jbe 4f",
        "movups xmm0, [rsi]",
        "movups [rdi], xmm0",
        "add rsi, 16",
        "add rdi, 16",
        "sub rdx, 16",
        "jmp 2b",
        "4:",
        "movups [r8], xmm4",
        "mov eax, 1",
        "ret",
        "3:",
        "cmp rdx, 8",
        "jb 5f",
        "mov rax, [rsi]",
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rcx",
        "mov eax, 1",
        "ret",
        "5:",
        "test rdx, rdx",
        "je 7f",
        "6:",
        "mov al, [rsi]",
        "mov [rdi], al",
        "inc rsi",
        "inc rdi",
        "dec rdx",
        "jne 6b",
        "7:",
        "mov eax, 1",
        "ret",
        "ucs_guarded_copy_fault:",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        ".size ucs_guarded_copy, . - ucs_guarded_copy",
        ".popsection",
    );

    unsafe extern "sysv64" {
        fn ucs_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> u32;
        fn ucs_guarded_copy_fault();
    }

    #[inline]
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
        // SAFETY: the caller's promise; a fault within ends it.
        unsafe { ucs_guarded_copy(to, from, len) != 0 }
    }

    static SEGV_BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
    static BUS_BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    pub fn install() -> Result<(), Errno> {
        install_for(libc::SIGSEGV, &SEGV_BEFORE)?;
        install_for(libc::SIGBUS, &BUS_BEFORE)
    }

    fn install_for(signal: c_int, before: &OnceLock<libc::sigaction>) -> Result<(), Errno> {
        if before.get().is_some() {
            return Ok(());
        }
        let mut old = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: asks for the handler, into room for it.
        if unsafe { libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr()) } != 0 {
            return Err(Errno::last_os());
        }
        // SAFETY: filled by the call.
        let old = unsafe { old.assume_init() };
        // One thread installs it. The handler finds what was there before.
        if before.set(old).is_err() {
            return Ok(());
        }
        let mut ours = old;
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | old.sa_flags & libc::SA_NODEFER;
        // SAFETY: the handler makes only calls that a signal handler may make.
        match unsafe { libc::sigaction(signal, &ours, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(Errno::last_os()),
        }
    }

    extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes it to a handler of this kind, for as long as the handler runs.
        let info_of = unsafe { &*info };
        // SAFETY: as above; nobody else has it.
        let context_of = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let at = &mut context_of.uc_mcontext.gregs[libc::REG_RIP as usize];
        let start = ucs_guarded_copy as *const () as usize;
        let end = ucs_guarded_copy_fault as *const () as usize;
        // A signal that a process has sent has no such code.
        if info_of.si_code > 0 && (start..end).contains(&(*at as usize)) {
            *at = end as i64;
            return;
        }
        let before = if signal == libc::SIGSEGV { &SEGV_BEFORE } else { &BUS_BEFORE };
        pass_on(before.get(), signal, info_of.si_code, (info, context));
    }

    /// Does what would have happened without us.
    fn pass_on(
        before: Option<&libc::sigaction>,
        signal: c_int,
        code: c_int,
        (info, context): (*mut libc::siginfo_t, *mut c_void),
    ) {
        let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
        let flags = before.map_or(0, |before| before.sa_flags);
        if handler == libc::SIG_IGN && code <= 0 {
            return;
        }
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN || flags & libc::SA_RESETHAND != 0 {
            // SAFETY: restores the default, at which the instruction that faults ends the process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            if code <= 0 {
                // SAFETY: the signal is blocked here, and ends the process when the handler returns.
                unsafe { libc::raise(signal) };
            }
        } else if flags & libc::SA_SIGINFO != 0 {
            type Full = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: the flag says that the handler has these parameters.
            let handler = unsafe { std::mem::transmute::<usize, Full>(handler) };
            handler(signal, info, context);
        } else {
            // SAFETY: without the flag it has this one.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux", not(miri)))]
mod tests {
    use super::*;
    use crate::mem::page::page_size;
    use crate::mem::{MapOpts, Mapping};
    use std::os::unix::process::ExitStatusExt;

    /// Pages of which the last is not mapped.
    fn with_hole(pages: usize) -> (Mapping, usize) {
        let page = page_size();
        let map = Mapping::new(pages * page, MapOpts::default()).unwrap();
        let last = map.as_ptr().wrapping_add((pages - 1) * page);
        // SAFETY: the page is of this mapping, and nothing else uses it.
        let done = unsafe { libc::mprotect(last.cast(), page, libc::PROT_NONE) };
        assert_eq!(done, 0);
        (map, page)
    }

    #[test]
    fn every_length_and_overlap_is_copied() {
        install().unwrap();
        let pattern: Vec<u8> = (0..9000usize).map(|i| (i * 7 + i / 251) as u8).collect();
        for len in (0..300).chain([4095, 4096, 4097, 8200]) {
            for (from, to) in [(0, 400), (3, 401), (400, 0), (100, 101), (101, 100), (64, 80), (80, 64)] {
                let mut bytes = pattern.clone();
                let mut want = pattern.clone();
                want.copy_within(from..from + len, to);
                let at = bytes.as_mut_ptr();
                // SAFETY: both ranges lie in the vector.
                assert!(unsafe { copy(at.wrapping_add(from), at.wrapping_add(to), len) });
                assert!(bytes == want, "{len} {from} {to}");
            }
        }
    }

    #[test]
    fn a_fault_on_either_side_ends_the_copy() {
        install().unwrap();
        let (map, page) = with_hole(3);
        let border = map.as_ptr().wrapping_add(2 * page);
        let mut other = vec![1u8; 2 * page];
        for len in [1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 1000, page] {
            for before in [0, 1.min(len - 1), len / 2, len - 1] {
                let at = border.wrapping_sub(before);
                // SAFETY: what is not mapped is the guard's.
                assert!(!unsafe { copy(at, other.as_mut_ptr(), len) }, "read {len} {before}");
                // SAFETY: as above.
                assert!(!unsafe { copy(other.as_ptr(), at, len) }, "write {len} {before}");
                // SAFETY: as above; the ranges overlap.
                assert!(!unsafe { copy(at.wrapping_sub(1), at, len + 1) }, "both {len} {before}");
            }
            // SAFETY: mapped on both sides.
            assert!(unsafe { copy(border.wrapping_sub(len), other.as_mut_ptr(), len) });
        }
    }

    /// Runs one test of this file in a process of its own.
    fn child(scene: &str) -> std::process::Output {
        let exe = std::env::current_exe().unwrap();
        let name = "mem::guard::tests::scenes_of_a_child";
        let args = ["--exact", name, "--nocapture", "--test-threads", "1"];
        std::process::Command::new(exe).args(args).env("GUARD_SCENE", scene).output().unwrap()
    }

    extern "C" fn tells(_signal: i32) {
        // SAFETY: writes a static text to a descriptor, and ends.
        unsafe { libc::write(1, b"the program's own".as_ptr().cast(), 17) };
        // SAFETY: ends the process.
        unsafe { libc::_exit(7) };
    }

    #[test]
    fn scenes_of_a_child() {
        let Ok(scene) = std::env::var("GUARD_SCENE") else { return };
        let handler = match &*scene {
            "handler" => tells as *const () as usize,
            _ => libc::SIG_DFL,
        };
        // SAFETY: sets a handler that makes only calls that it may make.
        unsafe { libc::signal(libc::SIGSEGV, handler) };
        install().unwrap();
        let (map, page) = with_hole(2);
        let hole = map.as_ptr().wrapping_add(page);
        // SAFETY: what is not mapped is the guard's.
        assert!(!unsafe { copy(hole, map.as_ptr(), 8) });
        if scene == "sent" {
            // SAFETY: ends this process.
            unsafe { libc::raise(libc::SIGSEGV) };
        }
        // SAFETY: none: the fault is the subject.
        std::hint::black_box(unsafe { hole.read_volatile() });
    }

    #[test]
    fn other_faults_are_as_without_it() {
        let died = child("default");
        assert_eq!(died.status.signal(), Some(libc::SIGSEGV), "{died:?}");
        let died = child("sent");
        assert_eq!(died.status.signal(), Some(libc::SIGSEGV), "{died:?}");
        let handled = child("handler");
        assert_eq!(handled.status.code(), Some(7), "{handled:?}");
        assert!(String::from_utf8_lossy(&handled.stdout).contains("the program's own"));
    }
}
