//! Link options of the library: UCX's name, and a mark that it stays loaded after `dlclose`, since thread
//! locals and helper threads do not survive being unmapped.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libucp.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
