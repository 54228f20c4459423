//! Functions with a variable number of arguments, which Rust cannot define: a few instructions store the
//! registers that carry arguments, and a function of Rust gets them with the `va_list` of the rest.

use std::ffi::{c_char, c_int, c_void};

/// Bytes of a text of [`Args::text`], with its end.
pub(crate) const TEXT_MAX: usize = 4096;

/// Integer registers that carry arguments.
#[cfg(target_arch = "x86_64")]
const REGISTERS: usize = 6;
/// Integer registers that carry arguments.
#[cfg(target_arch = "aarch64")]
const REGISTERS: usize = 8;

/// `va_list` of x86-64.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(C)]
struct VaList {
    integers: u32,
    floats: u32,
    stack: *mut c_void,
    registers: *mut c_void,
}

/// `va_list` of AArch64.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
#[repr(C)]
struct VaList {
    stack: *mut c_void,
    integers_end: *mut c_void,
    floats_end: *mut c_void,
    integers: i32,
    floats: i32,
}

/// Arguments of a call: what the instructions of [`variadic!`] store on the stack.
#[repr(C)]
pub(crate) struct Args {
    registers: [usize; REGISTERS],
    floats: [u128; 8],
    rest: VaList,
}

unsafe extern "C" {
    // A `va_list` parameter is a pointer on both processors.
    fn vsnprintf(buffer: *mut c_char, size: usize, format: *const c_char, rest: *mut c_void) -> c_int;
}

impl Args {
    /// A fixed argument.
    pub(crate) fn fixed(&self, index: usize) -> usize {
        self.registers[index]
    }

    /// A fixed argument that is an address.
    pub(crate) fn pointer<T>(&self, index: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.registers[index])
    }

    /// Prints the variable arguments into `size` bytes with a zero behind the text. Returns the length that
    /// the whole text has.
    ///
    /// # Safety
    /// The caller of the variadic function passed a format and the arguments that it names. `size` bytes at
    /// `buffer` may be written.
    pub(crate) unsafe fn print(&self, format: *const c_char, buffer: *mut c_char, size: usize) -> usize {
        let mut rest = self.rest;
        // SAFETY: the contract of this function. The list is a copy, so that it can be read again.
        let length = unsafe { vsnprintf(buffer, size, format, (&raw mut rest).cast()) };
        usize::try_from(length).unwrap_or(0)
    }

    /// The variable arguments, of a call where all are addresses.
    pub(crate) fn pointers<T>(&self) -> Pointers<T> {
        Pointers { rest: self.rest, kind: std::marker::PhantomData }
    }

    /// The text of the variable arguments, at most 4 KiB.
    ///
    /// # Safety
    /// As [`Args::print`].
    pub(crate) unsafe fn text(&self, format: *const c_char) -> String {
        let mut buffer = [0u8; TEXT_MAX];
        // SAFETY: the contract of this function; the buffer has that many bytes.
        let length = unsafe { self.print(format, buffer.as_mut_ptr().cast(), buffer.len()) };
        String::from_utf8_lossy(&buffer[..length.min(buffer.len() - 1)]).into_owned()
    }
}

/// Variable arguments of a call that are addresses.
pub(crate) struct Pointers<T> {
    rest: VaList,
    kind: std::marker::PhantomData<*mut T>,
}

impl<T> Pointers<T> {
    /// The next argument.
    ///
    /// # Safety
    /// The caller of the variadic function passed it, and it is an address.
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn next(&mut self) -> *mut T {
        let rest = &mut self.rest;
        let at = match (rest.integers as usize) < REGISTERS * 8 {
            true => {
                rest.integers += 8;
                rest.registers.cast::<u8>().wrapping_add(rest.integers as usize - 8)
            }
            false => {
                let at = rest.stack.cast::<u8>();
                rest.stack = at.wrapping_add(8).cast();
                at
            }
        };
        // SAFETY: the contract of this function: the argument was stored there.
        unsafe { at.cast::<*mut T>().read() }
    }

    /// The next argument.
    ///
    /// # Safety
    /// The caller of the variadic function passed it, and it is an address.
    #[cfg(target_arch = "aarch64")]
    pub(crate) unsafe fn next(&mut self) -> *mut T {
        let rest = &mut self.rest;
        let at = match rest.integers < 0 {
            true => {
                rest.integers += 8;
                rest.integers_end.cast::<u8>().wrapping_offset(rest.integers as isize - 8)
            }
            false => {
                let at = rest.stack.cast::<u8>();
                rest.stack = at.wrapping_add(8).cast();
                at
            }
        };
        // SAFETY: the contract of this function: the argument was stored there.
        unsafe { at.cast::<*mut T>().read() }
    }
}

/// Defines an exported function with a variable number of arguments. `fixed` is the number of its arguments
/// before them; `body` is a function `unsafe extern "C" fn(*const Args)`.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($($(#[$meta:meta])* fn $name:ident: fixed $fixed:literal, body $body:path;)+) => {$(
        $(#[$meta])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "mov dword ptr [rsp + 176], {integers}",
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                "mov rdi, rsp",
                "call {body}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                integers = const 8 * $fixed,
                body = sym $body,
            )
        }
    )+};
}

/// Defines an exported function with a variable number of arguments, by the calling convention of AArch64.
/// Arguments as on x86-64.
#[cfg(target_arch = "aarch64")]
macro_rules! variadic {
    ($($(#[$meta:meta])* fn $name:ident: fixed $fixed:literal, body $body:path;)+) => {$(
        $(#[$meta])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-16]!",
                "mov x29, sp",
                "sub sp, sp, #224",
                "stp x0, x1, [sp]",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "stp q0, q1, [sp, #64]",
                "stp q2, q3, [sp, #96]",
                "stp q4, q5, [sp, #128]",
                "stp q6, q7, [sp, #160]",
                "add x8, x29, #16",
                "str x8, [sp, #192]",
                "add x8, sp, #64",
                "str x8, [sp, #200]",
                "add x8, sp, #192",
                "str x8, [sp, #208]",
                "mov w8, #{integers}",
                "str w8, [sp, #216]",
                "mov w8, #-128",
                "str w8, [sp, #220]",
                "mov x0, sp",
                "bl {body}",
                "mov sp, x29",
                "ldp x29, x30, [sp], #16",
                "ret",
                integers = const 8 * ($fixed - 8),
                body = sym $body,
            )
        }
    )+};
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints seven integers and nine floats, so that both kinds of registers and the stack are used.
    unsafe extern "C" fn body(args: *const Args) {
        // SAFETY: the test passes a buffer of 256 bytes, its size, and a format with its arguments.
        unsafe {
            let args = &*args;
            let length = args.print(args.pointer(2), args.pointer(0), args.fixed(1));
            assert_eq!(length, args.print(args.pointer(2), args.pointer(0), args.fixed(1)));
        }
    }

    variadic! {
        /// Like `snprintf`, without its result.
        fn ucx_test_print: fixed 3, body body;
    }

    type Print = unsafe extern "C" fn(*mut c_char, usize, *const c_char, ...);

    #[test]
    fn arguments_in_registers_and_on_the_stack_arrive() {
        // SAFETY: the function takes the arguments of `snprintf`.
        let print: Print = unsafe { std::mem::transmute(ucx_test_print as *const c_void) };
        let mut buffer = [0u8; 256];
        let text = c"shared";
        let format = c"%d %s %ld %d %d %d %d %.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f";
        // SAFETY: the format names the arguments that follow it.
        unsafe {
            print(
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                format.as_ptr(),
                -1,
                text.as_ptr(),
                1i64 << 40,
                3,
                4,
                5,
                6,
                0.5,
                1.5,
                2.5,
                3.5,
                4.5,
                5.5,
                6.5,
                7.5,
                8.5,
                9.5,
            );
        }
        let printed = std::ffi::CStr::from_bytes_until_nul(&buffer).expect("a text").to_str().expect("ASCII");
        assert_eq!(printed, "-1 shared 1099511627776 3 4 5 6 0.5 1.5 2.5 3.5 4.5 5.5 6.5 7.5 8.5 9.5");
    }
}
