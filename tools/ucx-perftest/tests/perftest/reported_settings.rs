//! The settings in a JSON result are those asked for, and sides run on the cores of `-c`.

use crate::common::{Server, program, run_ok};
use serde_json::{Value, json};

fn of(line: &str) -> Value {
    let out = run_ok(line);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {out}"))
}

/// Two allowed cores; the same one twice on a machine of one.
fn cores() -> [String; 2] {
    let allowed = ucs_cores();
    [allowed[0], *allowed.get(1).unwrap_or(&allowed[0])].map(|core| core.to_string())
}

fn ucs_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

#[test]
fn settings_are_reported() {
    let value = of("--local --json -t ucp_am_bw -x posix -n 300 -w 7 -O 5 -H 24 -R 90 -s 100 -y -M multi");
    let run = &value["run"];
    assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(value["percentile"]["rank"], 90.0);
    assert!(value["percentile"]["us"].as_f64().unwrap() >= value["latency_us"]["p50"].as_f64().unwrap());
    for (field, want) in [
        ("warmup", json!(7)),
        ("header", json!(24)),
        ("pieces", json!([100])),
        ("processes", json!(2)),
        ("threads", json!(1)),
        ("tls", json!("posix")),
        ("devices", json!("all")),
        ("copies", json!(true)),
        ("wait", json!("poll")),
        ("thread_mode", json!("multi")),
    ] {
        assert_eq!(run[field], want, "{field}: {value}");
    }
    let value = of("--local --json -t am_bw -x posix -d memory -D bcopy -n 300 -W 9 -M multi -T 2");
    let run = &value["run"];
    assert_eq!(
        (&run["layout"], &run["credits"], &run["thread_mode"]),
        (&json!("bcopy"), &json!(9), &json!("multi"))
    );
    assert_eq!(
        (&run["processes"], &run["threads"], &run["devices"]),
        (&json!(2), &json!(2), &json!("memory"))
    );
    assert_eq!((&run["header"], run["cores"].as_array().unwrap().len()), (&json!(8), 4));
    assert_eq!(of("--local --json -t put_lat -x posix -n 300")["run"]["header"], 0);
}

#[test]
fn sides_run_on_listed_cores_in_order() {
    let [a, b] = cores();
    for (list, want) in
        [(format!("{a},{b}"), [&a, &b]), (format!("{b},{a}"), [&b, &a]), (b.clone(), [&b, &b])]
    {
        let value = of(&format!("--local --json -t tag_lat -x posix -n 300 -c {list}"));
        assert_eq!(value["run"]["cores"], json!(want), "{list}");
    }
    let value = of(&format!("--local --json -t tag_lat -x posix -n 200 -T 2 -c {b},{a}"));
    assert_eq!(value["run"]["cores"], json!([&b, &b, &a, &a]), "half of the seats each");
}

#[test]
fn server_and_client_threads_run_on_listed_cores() {
    let [a, b] = cores();
    let server = Server::start(&format!("-c {b},{a}"));
    let mut client = program();
    client.args(["127.0.0.1", "-p", &server.port.to_string(), "--json", "-c", &format!("{a},{b}")]);
    let client = client.args("-t tag_lat -x posix -n 300 -T 2".split(' ')).output().unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let value: Value = serde_json::from_slice(&client.stdout).unwrap();
    assert_eq!(value["run"]["cores"], json!([&b, &a, &a, &b]));
    let ran = server.finish();
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
}

#[test]
fn affinity_is_restored_between_tests() {
    let file = std::env::temp_dir().join(format!("perftest-reproduced-{}", std::process::id()));
    std::fs::write(&file, "a -t tag_lat\nb -t tag_lat -T 2\nc -t tag_lat\n").unwrap();
    let [a, b] = cores();
    for how in ["--local".to_owned(), format!("--local -c {a},{b}"), "-l".into()] {
        let out = run_ok(&format!("{how} --json -x posix,self -n 200 -b {}", file.display()));
        let all: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(all[0]["run"]["cores"], all[2]["run"]["cores"], "{how}: {out}");
    }
    std::fs::remove_file(file).unwrap();
}
