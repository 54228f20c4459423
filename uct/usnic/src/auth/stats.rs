//! Counters of who may talk.

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Events since the start. Whatever is dropped is counted once, by its reason.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct AuthStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AuthStats {
            /// Counters with their names.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

stats! {
    /// Datagrams sealed.
    sealed,
    /// Datagrams opened.
    opened,
    /// Dropped: sealed datagrams that do not authenticate.
    forged,
    /// Dropped: sealed datagrams that have arrived before.
    repeated,
    /// Dropped: sealed datagrams too old to tell whether they have arrived before.
    old,
    /// Dropped: sealed datagrams of a session that is not known.
    unknown,
    /// Dropped: datagrams without a clear header of ours.
    malformed,
    /// Dropped: handshake messages by somebody without the secret.
    strangers,
    /// Dropped: handshake messages that are late, repeated, or for another node.
    stray,
    /// Dropped: requests with a cookie that is not ours, or no longer.
    cookies_refused,
    /// Dropped: requests beyond the limit of peers.
    peers_refused,
    /// Handshakes started.
    started,
    /// Handshakes given up without an answer.
    given_up,
    /// Sessions that this node asked for and got.
    initiated,
    /// Sessions granted, whose peers have used them.
    accepted,
    /// Sessions granted and dropped for newer ones, before their peers used them.
    evicted,
    /// Sends without a session.
    no_session,
    /// Peers told that their session is not known.
    notices_sent,
    /// Notices received of a session that the peer does not know.
    notices_received,
}
