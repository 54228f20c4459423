//! Death of a peer within a bounded time. The document leaves it to the job. A peer from which something is
//! awaited and that is silent is probed; after some probes without a word it is dead. Probes are counted,
//! not time: a clock that jumps, or a process that was stopped, declares nobody dead.

use crate::config::Config;

/// Silence of one peer.
#[derive(Clone, Copy, Default, Debug)]
pub struct Keepalive {
    /// Whether anything arrived since the timer was set.
    heard: bool,
    probes: u32,
}

/// The thing to do when the timer of a peer has expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// Nothing: it was heard.
    None,
    /// Send a probe.
    Probe,
    /// The peer is dead.
    Dead,
}

impl Keepalive {
    /// Takes an arrival from the peer.
    #[inline]
    pub fn on_heard(&mut self) {
        self.heard = true;
    }

    /// Judges the silence since the timer was set.
    pub fn on_timer(&mut self, config: &Config) -> Silence {
        if std::mem::take(&mut self.heard) {
            self.probes = 0;
            return Silence::None;
        }
        if self.probes >= config.probes {
            return Silence::Dead;
        }
        self.probes += 1;
        Silence::Probe
    }

    /// Begins anew: something is awaited from now on.
    pub fn begin(&mut self) {
        *self = Keepalive::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_after_some_probes_without_a_word() {
        let config = Config { probes: 2, ..Config::default() };
        let mut keepalive = Keepalive::default();
        assert_eq!(keepalive.on_timer(&config), Silence::Probe);
        keepalive.on_heard();
        assert_eq!(keepalive.on_timer(&config), Silence::None);
        let told: Vec<Silence> = (0..3).map(|_| keepalive.on_timer(&config)).collect();
        assert_eq!(told, [Silence::Probe, Silence::Probe, Silence::Dead]);
    }
}
