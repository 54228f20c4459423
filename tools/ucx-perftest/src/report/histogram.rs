//! A histogram as text: a bar per bin, and the cumulative percentage.

use tools_common::meter::Bin;

const WIDTH: usize = 50;

pub fn lines(bins: &[Bin]) -> Vec<String> {
    let all: u64 = bins.iter().map(|b| b.count).sum();
    let most = bins.iter().map(|b| b.count).max().unwrap_or(1).max(1);
    let mut sum = 0;
    let line = |bin: &Bin| {
        sum += bin.count;
        // A bin with samples has a mark.
        let bar = (bin.count as f64 / most as f64 * WIDTH as f64).ceil() as usize;
        let part = sum as f64 / all as f64 * 100.0;
        format!("{:>12.3} usec {:>10} {part:>8.4} % {}", bin.upto * 1e6, bin.count, "#".repeat(bar))
    };
    bins.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_length_is_proportional() {
        let bins =
            [Bin { upto: 1e-6, count: 100 }, Bin { upto: 2e-6, count: 50 }, Bin { upto: 1e-3, count: 1 }];
        let lines = lines(&bins);
        assert_eq!(lines[0], format!("       1.000 usec        100  66.2252 % {}", "#".repeat(50)));
        assert!(lines[1].ends_with(&format!("99.3377 % {}", "#".repeat(25))), "{}", lines[1]);
        assert!(lines[2].ends_with("100.0000 % #"), "{}", lines[2]);
        assert!(super::lines(&[]).is_empty());
    }
}
