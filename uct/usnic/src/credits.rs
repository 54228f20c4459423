//! Send credits of an endpoint. *"Send credits are consumed here"* (`endpoint_send_segment`); they come back
//! when the channel has completed the send, and *"limit how many larges can be queued on the sender"*
//! (Reordering).

/// Sends that an endpoint may still post.
#[derive(Clone, Copy, Debug)]
pub struct Credits {
    left: u32,
    total: u32,
}

impl Credits {
    /// Creates `total` credits.
    pub fn new(total: u32) -> Self {
        Credits { left: total, total }
    }

    /// Whether a send may be posted.
    #[inline]
    pub fn has(&self) -> bool {
        self.left != 0
    }

    /// Consumes one for a posted send.
    #[inline]
    pub fn consume(&mut self) {
        debug_assert!(self.left != 0);
        self.left -= 1;
    }

    /// Gives one back for a completed send.
    #[inline]
    pub fn give_back(&mut self) {
        debug_assert!(self.left < self.total);
        self.left = (self.left + 1).min(self.total);
    }

    /// Sends posted and not completed.
    pub fn used(&self) -> u32 {
        self.total - self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumed_and_given_back() {
        let mut credits = Credits::new(1);
        credits.consume();
        assert!(!credits.has() && credits.used() == 1);
        credits.give_back();
        assert!(credits.has() && credits.used() == 0);
    }
}
