//! The configuration keys of the libfabric provider, `libefa4-fi.so`.

ucs::config_table! {
    /// The libfabric provider. Programs without it know these keys too, so that they do not warn of them.
    pub struct LibfabricConfig, prefix "UCX_OFI_" {
        /// Name of the provider. With efa it takes the place of libfabric's own, as its version is higher.
        pub name: String = "efa4", key "NAME";
        /// Let libfabric's utility providers layer over connected endpoints and datagrams (efa4;ofi_rxm,
        /// efa4;ofi_rxd). libfabric then lists them before the provider.
        pub layered: bool = "n", key "LAYERED";
        /// Give each endpoint a thread that makes progress, also where a program asks for manual progress.
        pub auto_progress: bool = "n", key "AUTO_PROGRESS";
    }
}
