//! Tests of the cost file, of rejected files, and of corrected costs.

use proptest::prelude::*;
use ucs::config::{Source, Table as _};
use uct::api::DevKind;

use super::cache::{ParseError, parse, text};
use super::*;

fn key() -> Key {
    Key {
        boot: "b-1".into(),
        kernel: "Linux 6".into(),
        cpu: "Some CPU @ 3 GHz".into(),
        version: "0.1".into(),
    }
}

fn sample() -> Calibration {
    let device = DeviceCosts {
        tl: "efa".into(),
        dev: "softefa0".into(),
        device_type: DeviceType::Software,
        overhead: Some(61.5),
        register: Some(Line::new(200.0, 0.0)),
        put: [None, Some(Line::new(1700.0, 0.06))],
        get: [Some(Line::new(90.0, 0.02)), None],
    };
    let cma = DeviceCosts { tl: "cma".into(), overhead: None, ..device.clone() };
    Calibration {
        copy: 0.015,
        copy_uncached: 0.07,
        core_to_core: Some(Line::new(80.0, 0.03)),
        devices: vec![device, cma],
    }
}

#[test]
fn written_costs_are_read_back() {
    assert_eq!(parse(&text(&key(), &sample()), &key()), Ok(sample()));
    let bare = Calibration { core_to_core: None, devices: Vec::new(), ..sample() };
    assert_eq!(parse(&text(&key(), &bare), &key()), Ok(bare));
}

#[test]
fn costs_of_another_machine_are_stale() {
    let written = text(&key(), &sample());
    for other in [
        Key { boot: "b-2".into(), ..key() },
        Key { kernel: "Linux 7".into(), ..key() },
        Key { cpu: "Other".into(), ..key() },
        Key { version: "0.2".into(), ..key() },
    ] {
        assert_eq!(parse(&written, &other), Err(ParseError::Stale), "{other:?}");
    }
}

#[test]
fn damaged_files_are_rejected() {
    let whole = text(&key(), &sample());
    for len in 0..whole.len() - 1 {
        assert!(parse(&whole[..len], &key()).is_err(), "the first {len} bytes");
    }
    for (from, to) in [
        ("copy 0.015", "copy NaN"),
        ("copy 0.015", "copy -1"),
        ("copy 0.015", "copy 1e300"),
        ("copy 0.015\n", ""),
        ("across 80 0.03", "across 80"),
        ("across 80 0.03", "across 80 0.03 7"),
        ("software", "ware"),
        ("register", "regster"),
        ("end\n", "end\nend\n"),
    ] {
        assert!(whole.contains(from), "{from}");
        assert!(matches!(parse(&whole.replacen(from, to, 1), &key()), Err(ParseError::Line(_))), "{to}");
    }
    assert_eq!(parse("something else\n", &key()), Err(ParseError::Line(1)));
}

proptest! {
    #[test]
    fn anything_may_be_in_the_file(lines in proptest::collection::vec("(end|copy|copy_uncached|across|device|overhead|put_allocated|get_registered|x)( (0.1|nan|-3|efa|software|1e9)){0,4}", 0..12)) {
        let head = text(&key(), &Calibration { devices: Vec::new(), core_to_core: None, ..sample() });
        let head = head.split("copy ").next().unwrap();
        if let Ok(costs) = parse(&format!("{head}{}\n", lines.join("\n")), &key()) {
            prop_assert!(costs.copy.is_finite() && costs.copy >= 0.0);
        }
    }
}

fn attr(tl: &str, dev: &str) -> IfaceAttr {
    let mut attr = uct::any::open("self", "memory", &Source::empty()).map(|iface| {
        use uct::api::Iface as _;
        iface.attr().clone()
    });
    let attr = attr.as_mut().unwrap();
    attr.tl = if tl == "efa" { "efa" } else { "posix" };
    attr.dev = dev.into();
    attr.kind = DevKind::Net;
    attr.clone()
}

#[test]
fn measured_costs_take_the_place_of_attributes() {
    let before = Costs::default();
    let after = sample().correct(&attr("efa", "softefa0"), before);
    assert_eq!((after.overhead, after.copy, after.copy_uncached), (61.5, 0.015, 0.07));
    assert_eq!((after.latency, after.wire), (80.0, 0.03));
    assert_eq!(after.put, [before.put[0], Line::new(1700.0, 0.06)]);
    assert_eq!(after.get, [Line::new(90.0, 0.02), before.get[1]]);
    assert_eq!(sample().correct(&attr("efa", "softefa3"), before), after);
    let copies = Costs { copy: 0.015, copy_uncached: 0.07, ..before };
    assert_eq!(sample().correct(&attr("posix", "memory"), before), copies);
    let shared = IfaceAttr { kind: DevKind::Shm, ..attr("posix", "memory") };
    assert_eq!(sample().correct(&shared, before), Costs { latency: 80.0, wire: 0.03, ..copies });
    let mut hardware = sample();
    hardware.devices[0].device_type = DeviceType::Hardware;
    assert_eq!(hardware.correct(&attr("efa", "softefa0"), before).latency, before.latency);
}

#[test]
fn contexts_keep_what_they_measure() {
    let dir = std::env::temp_dir().join(format!("ucx-calibration-{}", std::process::id()));
    let source = Source::empty().with("UCX_CACHE_DIR", dir.to_str().unwrap()).with("UCX_TLS", "efa,cma");
    let source = source.with("UCX_NET_DEVICES", "softefa0");
    let config = Config::load(&source).unwrap();
    assert!(matches!(Calibration::load(&config), Err(CacheError::None(_))));
    let off = crate::Context::configured(source.clone()).unwrap();
    assert!(off.calibration().is_none() && !dir.exists(), "nothing happens unasked");
    let on = source.with("UCX_CALIBRATE", "y");
    let context = || crate::Context::configured(on.clone()).unwrap();
    let measured = context().calibration().unwrap().clone();
    assert!(measured.copy > 0.0 && measured.devices.iter().any(|d| d.tl == "efa" && d.overhead > Some(0.0)));
    assert_eq!(Calibration::load(&config), Ok(measured.clone()));
    assert_eq!(context().calibration(), Some(&measured));
    let file = dir.join("calibration");
    std::fs::write(&file, "ucx-calibration 1\nnonsense").unwrap();
    assert!(matches!(Calibration::load(&config), Err(CacheError::Stale(_))));
    assert!(context().calibration().is_some());
    assert!(Calibration::load(&config).is_ok(), "measured again, and kept");
    context().worker().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
