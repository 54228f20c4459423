//! Counts the iterations of a test, and prints figures about once a second, but not of the warm-up.

use tools_common::meter::Meter;

pub struct IterationCounter<'a> {
    pub meter: Meter,
    is_warm_up: bool,
    show: &'a mut dyn FnMut(&mut Meter),
}

impl<'a> IterationCounter<'a> {
    pub fn new(show: &'a mut dyn FnMut(&mut Meter)) -> Self {
        IterationCounter { meter: Meter::new(), is_warm_up: false, show }
    }

    /// Whether the iterations from the next [`start`](Self::start) on warm up, so that no figures are shown.
    pub fn set_warm_up(&mut self, is_warm_up: bool) {
        self.is_warm_up = is_warm_up;
    }

    pub fn start(&mut self) {
        self.meter.start();
    }

    /// Ends the measured time: what a test does afterwards, such as freeing buffers, does not count.
    pub fn stop(&mut self) {
        self.meter.stop();
    }

    /// Counts one iteration of a ping-pong.
    // HOT
    #[inline(always)]
    pub fn tick(&mut self) {
        self.meter.tick();
        if self.meter.is_report_due() {
            self.show();
        }
    }

    /// Counts one iteration of a stream.
    // HOT
    #[inline(always)]
    pub fn tick_stream(&mut self) {
        if self.meter.tick_stream() && self.meter.is_report_due() {
            self.show();
        }
    }

    #[cold]
    fn show(&mut self) {
        if self.is_warm_up {
            // Begins the time to the next report.
            self.meter.read(50.0);
        } else {
            (self.show)(&mut self.meter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_shows_nothing() {
        for is_warm_up in [true, false] {
            let mut shown = 0;
            let mut show = |meter: &mut Meter| {
                meter.read(50.0);
                shown += 1;
            };
            let mut counter = IterationCounter::new(&mut show);
            counter.set_warm_up(is_warm_up);
            counter.start();
            let begun = std::time::Instant::now();
            while begun.elapsed() < std::time::Duration::from_millis(1200) {
                counter.tick();
            }
            counter.tick();
            // One for each second, or fewer where the machine pauses.
            let seconds = begun.elapsed().as_secs();
            assert!(if is_warm_up { shown == 0 } else { (1..=seconds).contains(&shown) }, "{shown}");
        }
    }
}
