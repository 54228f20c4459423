//! Configuration: value syntax, layers and origins, errors, unknown names, dumps.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

crate::config_table! {
    /// For the tests, on two lines.
    struct TestConfig, prefix "UCX_TEST_" {
        /// A ring.
        cells: u32 = "256", key "CELLS", unit "cells", range 2..=65536, check |v| v.is_power_of_two() => "a power of two";
        /// From here on rendezvous.
        thresh: Auto<usize> = "auto", key "THRESH", unit "bytes";
        /// Names.
        tls: Vec<String> = "posix,efa", key "TLS";
        /// A pause.
        pause: Duration = "50us", key "PAUSE";
        /// A switch.
        huge: bool = "n", key "HUGE";
        /// A share.
        share: f64 = "0.5", key "SHARE", range 0.0..=1.0;
    }
}

fn load(key: &str, value: &str) -> Result<TestConfig, String> {
    TestConfig::load(&Source::empty().with(key, value)).map_err(|e| e.to_string())
}

fn vars(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(k, v)| (k.into(), v.into())).collect()
}

/// Collects what a logger writes.
#[derive(Clone, Default)]
struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Lines {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        self.clone()
    }
}

struct Temp(PathBuf);

impl Temp {
    fn new(name: &str, text: &str) -> Temp {
        let path = std::env::temp_dir().join(format!("ucs-config-{name}-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        Temp(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn sizes() {
    let good = [
        ("0", 0),
        ("512", 512),
        ("8k", 8192),
        ("8KB", 8192),
        ("1.5m", 3 << 19),
        ("2g", 2 << 30),
        ("1t", 1 << 40),
        ("2P", 2 << 50),
        ("1.5e", 3 << 59),
        ("7b", 7),
        ("0.0009765625k", 1),
        ("inf", u64::MAX),
        ("18446744073709551615", u64::MAX),
    ];
    for (text, want) in good {
        assert_eq!(parse_size(text), Some(want), "{text}");
    }
    for bad in [
        "",
        "k",
        "-1",
        "+1",
        "1kk",
        "1 k x",
        "0x10",
        "1.k",
        "1.5.5",
        "18446744073709551616",
        "16777216t",
        "16e",
        "é",
        "0.\u{660}\u{660}\u{660}\u{660}\u{660}\u{660}\u{660}\u{660}\u{660}\u{660}\u{660}\u{660}\u{660}",
        "0.𑅐𑅐𑅐𑅐𑅐𑅐𑅐𑅐𑅐𑅐𑅐𑅐𑅐",
    ] {
        assert_eq!(parse_size(bad), None, "{bad}");
    }
    assert_eq!(u8::parse("256"), None);
    assert_eq!(u8::parse("inf"), Some(255));
    assert_eq!(i32::parse("-5"), Some(-5));
}

#[test]
fn times() {
    for (text, want) in
        [("500us", 500_000), ("20ms", 20_000_000), ("1.5s", 1_500_000_000), ("7ns", 7), ("2", 2_000_000_000)]
    {
        assert_eq!(Duration::parse(text), Some(Duration::from_nanos(want)), "{text}");
    }
    for longest in ["inf", "INF", "4294967295", "1000000000m", "99999999999999999999s"] {
        assert_eq!(Duration::parse(longest), Some(MAX_TIME), "{longest}");
    }
    for bad in ["", "us", "-1s", "1h", "nan", "1e400s", "5 parsecs", "infs"] {
        assert_eq!(Duration::parse(bad), None, "{bad}");
    }
}

#[test]
fn defaults_and_lists() {
    let config = TestConfig::default();
    assert_eq!((config.cells, config.thresh, config.huge), (256, Auto::Auto, false));
    assert_eq!(config.tls, ["posix", "efa"]);
    assert_eq!(config.pause, Duration::from_micros(50));
    assert!(load("UCX_TEST_TLS", "").unwrap().tls.is_empty());
    assert_eq!(load("UCX_TEST_TLS", " a , b").unwrap().tls, ["a", "b"]);
    assert!(load("UCX_TEST_TLS", "a,,b").is_err());
    assert_eq!(load("UCX_TEST_THRESH", "16k").unwrap().thresh.given(), Some(16384));
}

#[test]
fn errors_name_key_value_and_what_was_expected() {
    let cases = [
        (
            "UCX_TEST_CELLS",
            "100",
            "UCX_TEST_CELLS=100 (override): expected a number with optional k/m/g/t or inf, within 2..=65536, a power of two",
        ),
        (
            "UCX_TEST_CELLS",
            "1",
            "UCX_TEST_CELLS=1 (override): expected a number with optional k/m/g/t or inf, within 2..=65536, a power of two",
        ),
        ("UCX_TEST_HUGE", "maybe", "UCX_TEST_HUGE=maybe (override): expected y or n"),
        (
            "UCX_TEST_THRESH",
            "x",
            "UCX_TEST_THRESH=x (override): expected auto or a number with optional k/m/g/t or inf",
        ),
        (
            "UCX_TEST_SHARE",
            "nan",
            "UCX_TEST_SHARE=nan (override): expected a number such as 0.5 or 1e-6, within 0.0..=1.0",
        ),
    ];
    for (key, value, want) in cases {
        assert_eq!(load(key, value).unwrap_err(), want);
        assert_eq!(TestConfig::DESC.check(&Source::empty().with(key, value)).unwrap_err().to_string(), want);
    }
    assert_eq!(TestConfig::DESC.check(&Source::empty().with("UCX_TEST_CELLS", "4")), Ok(()));
}

#[test]
fn overrides_win_over_environment_over_file() {
    let file =
        Temp::new("layers", "UCX_TEST_CELLS = 4\nUCX_TEST_HUGE = true\nUCX_TEST_TLS = [\"a\", \"b\"]\n");
    let mut source = Source::from_vars(vars(&[
        ("UCX_CONFIG_FILE", file.0.to_str().unwrap()),
        ("UCX_TEST_CELLS", "8"),
        ("UCX_TEST_SHARE", "0.25"),
        ("PATH", "/bin"),
    ]))
    .unwrap();
    source.set("UCX_TEST_SHARE", "1");
    assert_eq!(source.lookup("UCX_TEST_CELLS"), Some(("8", Origin::Environment)));
    assert_eq!(source.lookup("UCX_TEST_HUGE"), Some(("y", Origin::File)));
    assert_eq!(source.lookup("UCX_TEST_SHARE"), Some(("1", Origin::Override)));
    assert!(!source.is_set("PATH"));
    let config = TestConfig::load(&source).unwrap();
    assert_eq!((config.cells, config.huge, config.share), (8, true, 1.0));
    assert_eq!(config.tls, ["a", "b"]);
    assert_eq!(source.unknown_keys(&[&TestConfig::DESC]), []);
}

#[test]
fn bad_files_say_where() {
    let from = |path: &str| Source::from_vars(vars(&[("UCX_CONFIG_FILE", path)])).map_err(|e| e.to_string());
    let missing = from("/no/such/file").unwrap_err();
    assert!(missing.starts_with("UCX_CONFIG_FILE=/no/such/file: cannot read it: "), "{missing}");
    let file = Temp::new("syntax", "UCX_TEST_CELLS = 4\nUCX_TEST_HUGE = \n");
    assert!(from(file.0.to_str().unwrap()).unwrap_err().contains(": line 2: "));
    let file = Temp::new("table", "[posix]\nUCX_TEST_HUGE = 1\n");
    assert!(from(file.0.to_str().unwrap()).unwrap_err().contains("posix: expected a string"));
    assert_eq!(from("").unwrap().unknown_keys(&[]), []);
}

#[test]
fn text_that_is_not_utf8_is_an_error() {
    let bad = |key: &str| vec![(OsString::from(key), OsString::from_vec(vec![0xff]))];
    let mut source = Source::from_vars(bad("UCX_TEST_TLS")).unwrap();
    let error = ConfigError::NotText { key: "UCX_TEST_TLS".into() };
    assert_eq!(TestConfig::load(&source).unwrap_err(), error);
    assert_eq!(TestConfig::DESC.check(&source).unwrap_err(), error);
    source.set("UCX_TEST_TLS", "a");
    assert_eq!(TestConfig::load(&source).unwrap().tls, ["a"]);
    // A value that nobody reads disturbs nobody.
    let source = Source::from_vars(bad("UCX_GDB_COMMAND")).unwrap();
    assert_eq!(TestConfig::load(&source), Ok(TestConfig::default()));
    let error = ConfigError::NotText { key: "UCX_CONFIG_FILE".into() };
    assert_eq!(Source::from_vars(bad("UCX_CONFIG_FILE")), Err(error));
}

#[test]
fn unknown_names_are_found_with_the_nearest_known() {
    let source = Source::from_vars(vars(&[
        ("UCX_TEST_CELS", "8"),
        ("UCX_TEST_HUEG", "y"),
        ("SOFTEFA_WHATEVER", "1"),
        ("UCX_CONFIG_FIEL", "x"),
        ("UCX_TEST_TLS", "a"),
    ]))
    .unwrap();
    let unknown = source.unknown_keys(&[&TestConfig::DESC]);
    let found: Vec<_> = unknown.iter().map(|u| (u.name.as_str(), u.nearest)).collect();
    assert_eq!(
        found,
        [
            ("SOFTEFA_WHATEVER", None),
            ("UCX_CONFIG_FIEL", Some("UCX_CONFIG_FILE")),
            ("UCX_TEST_CELS", Some("UCX_TEST_CELLS")),
            ("UCX_TEST_HUEG", Some("UCX_TEST_HUGE")),
        ]
    );
    assert_eq!(
        unknown[2].to_string(),
        "unknown configuration key UCX_TEST_CELS (environment): did you mean UCX_TEST_CELLS?"
    );
}

#[test]
fn names_of_ucx_are_known_though_unused() {
    let names = [
        "UCX_IB_GID_INDEX",
        "UCX_LOG_BUFFER",
        "UCX_MEMTYPE_CACHE",
        "UCX_PROTO_INFO",
        "UCX_RC_MLX5_TX_QUEUE_LEN",
        "UCX_RC_OF_ANY_RELEASE",
        "UCX_WARN_UNUSED_ENV_VARS",
    ];
    let vars: Vec<_> = names.iter().map(|name| (*name, "n")).chain([("UCX_MEMTYPE_CACH", "n")]).collect();
    let source = Source::from_vars(self::vars(&vars)).unwrap();
    let unused = &names[..names.len() - 1];
    assert_eq!(source.unused_keys(&[&TestConfig::DESC]), unused, "the last is declared");
    let unknown = source.unknown_keys(&[&TestConfig::DESC]);
    assert_eq!(unknown.len(), 1);
    assert_eq!(unknown[0].nearest, Some("UCX_MEMTYPE_CACHE"));
    for name in ["UCX_RCACHE", "UCX_POSIX_FIFO_SIZ", "UCX_EFA_IB", "UCX_", "SOFTEFA_GEN", "UCX_MEMTYPE"] {
        assert!(!is_ucx_name(name), "{name}");
    }
}

#[test]
fn list_of_names_of_ucx_is_sorted_and_plain() {
    let names: Vec<&str> = undeclared::ucx_names().collect();
    assert!(names.is_sorted() && names.len() > 1400, "{}", names.len());
    let plain = |n: &str| n.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    assert!(names.iter().all(|n| n.starts_with("UCX_") && plain(n)));
}

#[test]
fn names_are_reported_once_in_a_process_unless_suppressed() {
    let logged = |source: &Source| {
        let lines = Lines::default();
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
        let log = log.without_time().with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(log, || report_undeclared(source, &[&TestConfig::DESC]).unwrap());
        lines.text()
    };
    let source = Source::empty().with("UCX_REPORTED_ONCE", "1").with("UCX_ZCOPY_THRESH", "1");
    let quiet = source.clone().with("UCX_WARN_UNUSED_ENV_VARS", "n");
    let debug = "DEBUG ucs::config::undeclared: UCX_ZCOPY_THRESH: a setting of UCX that has no effect here\n";
    assert_eq!(logged(&quiet).trim_start(), debug);
    let warned = logged(&source);
    assert!(
        warned.contains("WARN") && warned.contains("unknown configuration key UCX_REPORTED_ONCE (override)")
    );
    assert!(
        warned.ends_with("(UCX_WARN_UNUSED_ENV_VARS=n suppresses this)\n") && warned.lines().count() == 1
    );
    assert_eq!(logged(&source), "");
    let bad = source.with("UCX_WARN_UNUSED_ENV_VARS", "perhaps");
    let error = report_undeclared(&bad, &[]).unwrap_err().to_string();
    assert_eq!(error, "UCX_WARN_UNUSED_ENV_VARS=perhaps (override): expected y or n");
}

#[test]
fn dumps_can_be_read_back() {
    let source = Source::empty().with("UCX_TEST_CELLS", "1k");
    let mut text = String::new();
    print(&mut text, &TestConfig::DESC, &source, Detail::Help).unwrap();
    assert!(text.starts_with("#\n# For the tests, on two lines.\n#\n\n# A ring.\n"), "{text}");
    assert!(
        text.contains("# (unit: cells; within 2..=65536, a power of two; default: 256; set by: override)\nUCX_TEST_CELLS=1k\n"),
        "{text}"
    );
    assert!(text.contains("# From here on rendezvous.\n# (unit: bytes)\nUCX_TEST_THRESH=auto\n"), "{text}");
    let mut plain = String::new();
    print(&mut plain, &TestConfig::DESC, &source, Detail::Values).unwrap();
    let pairs: Vec<_> = plain.lines().map(|l| l.split_once('=').unwrap()).collect();
    assert_eq!(pairs.len(), TestConfig::DESC.keys.len());
    let again = Source::from_vars(vars(&pairs)).unwrap();
    assert_eq!(TestConfig::load(&again), TestConfig::load(&source));
}

crate::config_table! {
    /// Declared badly.
    struct Unsound, prefix "UCX_" {
        /// Exists elsewhere.
        twice: String = "", key "TEST_TLS";
        /// Above its own range.
        over: u8 = "9", key "OVER", range 0..=8;
        ///
        mute: bool = "y", key "mute";
    }
}

#[test]
fn unsound_declarations_are_found() {
    assert_eq!(lint(&[&TestConfig::DESC, &SourceConfig::DESC, &crate::trace::LogConfig::DESC]), [""; 0]);
    assert_eq!(
        lint(&[&TestConfig::DESC, &Unsound::DESC]),
        [
            "UCX_TEST_TLS: declared twice",
            "UCX_OVER: default \"9\" is refused: expected a number with optional k/m/g/t or inf, within 0..=8",
            "UCX_mute: names consist of A-Z, 0-9 and _",
            "UCX_mute: no help text",
        ]
    );
    let fields = Unsound::load(&Source::empty().with("UCX_OVER", "8")).unwrap();
    assert_eq!((fields.twice.as_str(), fields.over, fields.mute), ("", 8, true));
}

#[test]
fn edit_distance() {
    for (a, b, want) in
        [("", "", 0), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "ab", 1), ("kitten", "sitting", 3)]
    {
        assert_eq!(source::distance(a, b), want);
        assert_eq!(source::distance(b, a), want);
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = (parse_size(&text), Duration::parse(&text), bool::parse(&text), f64::parse(&text));
        let _ = (i32::parse(&text), Auto::<u8>::parse(&text), Vec::<u16>::parse(&text));
    }

    #[test]
    fn number_like_text_is_read_or_refused(text in "[0-9]{0,22}\\.?[0-9]{0,22}[kmgtKMGTb]{0,2}") {
        let _ = (parse_size(&text), Duration::parse(&text));
    }

    #[test]
    fn sizes_with_units_are_exact(n in 0u64..1 << 24, shift in 0usize..5) {
        let text = format!("{n}{}", ["", "k", "m", "g", "t"][shift]);
        prop_assert_eq!(parse_size(&text), Some(n << (10 * shift)));
    }

    #[test]
    fn times_in_whole_units_are_exact(n in 0u64..1_000_000) {
        prop_assert_eq!(Duration::parse(&format!("{n}us")), Some(Duration::from_micros(n)));
        prop_assert_eq!(Duration::parse(&format!("{n}ms")), Some(Duration::from_millis(n)));
    }
}

#[test]
fn a_prefix_of_the_program_wins() {
    let source =
        Source::empty().with("UCX_TLS", "posix").with("UCX_MPI_TLS", "efa").with("UCX_OTHER_TLS", "x");
    let value = |source: &Source, key: &str| source.lookup(key).map(|(value, _)| value.to_owned());
    let of_mpi = source.clone().with_prefix("MPI");
    assert_eq!(value(&of_mpi, "UCX_TLS").as_deref(), Some("efa"));
    assert_eq!(value(&of_mpi, "UCX_MPI_TLS"), None);
    assert_eq!(value(&of_mpi, "UCX_OTHER_TLS").as_deref(), Some("x"));
    assert_eq!(source.clone().with_prefix(""), source);
    assert_eq!(value(&source.with_prefix("SHM"), "UCX_TLS").as_deref(), Some("posix"));
}
