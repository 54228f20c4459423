//! Link options of the library: UCX's name; a mark that it stays loaded after `dlclose`, since thread locals
//! and helper threads do not survive being unmapped; and calls within it that reach no other copy of it, or
//! UCX, in the process.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libucp.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
