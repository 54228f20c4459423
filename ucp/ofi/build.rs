//! Link options of the library: the provider's name, and a mark that it stays loaded after `dlclose`, since
//! thread locals and helper threads do not survive being unmapped.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libefa4-fi.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
