//! Every test over every transport between two processes, with every byte checked; formats of output.

use crate::common::{Server, program, run_ok};

fn each(wire: &str, options: &str, tests: &[&str]) {
    for test in tests {
        let out =
            run_ok(&format!("--local --json --validate -n 300 -w 20 -O 8 -x {wire} {options} -t {test}"));
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        let name = test.split(' ').next().unwrap();
        assert_eq!(value["test"], name);
        assert_eq!(value["transport"], wire);
        assert_eq!((&value["iterations"], &value["validated"]), (&300.into(), &true.into()), "{test}");
        for field in ["p50", "avg", "p99_9"] {
            assert!(value["latency_us"][field].as_f64().unwrap() >= 0.0, "{test}: {out}");
        }
        assert!(value["msg_rate"].as_f64().unwrap() > 0.0, "{test}: {out}");
    }
}

const AM: &[&str] = &[
    "am_lat",
    "am_lat -s 0",
    "am_lat -s 3",
    "am_lat -D shortiov -s 1,0,12",
    "am_lat -D bcopy -s 4000",
    "am_lat -D zcopy -s 5",
    "am_bw",
    "am_bw -D bcopy -s 8000",
    "am_bw -D zcopy -s 1k",
    "am_mr -W 2",
    "am_lat -M multi -s 3",
    "am_bw -M serialized -D bcopy -s 8000",
];
const RMA: &[&str] = &[
    "put_lat -D zcopy",
    "put_lat -D zcopy -s 5k",
    "put_bw -D zcopy -s 20k",
    "get -D zcopy -s 1",
    "get -s 20k",
    "get_bw -s 20k",
    "put_bw -M multi -D zcopy -s 20k",
];
const SHM_ONLY: &[&str] = &[
    "am_lat -D zcopy -s 100,200",
    "am_lat -D zcopy -s 100,200 -H 40",
    "am_bw -D zcopy -s 100 -H 0",
    "am_bw -D zcopy -s 3,100,200 -i 512",
    "put_bw -D zcopy -s 100,200 -i 4k -B",
    "get -D zcopy -s 100,200,7 -i 256",
    "put_lat",
    "put_lat -s 1",
    "put_lat -M multi",
    "fadd -M serialized",
    "put_lat -D bcopy -s 3000",
    "put_bw -s 300",
    "put_bw -D bcopy -s 300",
    "get",
    "get -D bcopy -s 300",
    "add_lat",
    "add_lat -s 4",
    "add_mr",
    "fadd",
    "fadd -s 4",
    "swap",
    "swap -s 4",
    "cswap",
    "cswap -s 4",
    "add_lat -s 1",
    "add_mr -s 2",
    "fadd -s 1",
    "swap -s 2",
    "cswap -s 1",
    "cswap -s 16",
    "fadd -s 16",
];
const TAG: &[&str] = &[
    "tag_lat",
    "tag_lat -s 0",
    "tag_lat -s 20k -C",
    "tag_lat -s 100k -z",
    "tag_lat -U -s 100",
    "tag_bw -s 1",
    "tag_bw -s 9000",
    "tag_bw -s 200k -n 300",
    "tag_bw -s 2k -U",
    "tag_sync_lat",
    "tag_sync_lat -s 100k -e",
    "tag_sync_bw -s 100",
    "tag_lat -D iov -s 16,48,3000",
    "tag_bw -D iov,contig -s 1k:16 -i 1500",
    "tag_bw -D contig,iov -s 100,0,7",
    "tag_bw -D iov -s 64k:16 -O 4",
    "tag_bw -D contig -s 512,512 -i 8192 -M multi -A signal",
];

const ONE_SIDED: &[&str] = &[
    "ucp_put_lat",
    "ucp_put_lat -s 20k",
    "ucp_put_lat -s 20k -z",
    "ucp_put_bw -s 9000",
    "ucp_put_bw -s 200k -O 4",
    "ucp_get -s 100",
    "ucp_get -s 200k -O 8",
    "ucp_add",
    "ucp_fadd -s 4",
    "ucp_swap",
    "ucp_cswap",
    "ucp_add -s 1",
    "ucp_fadd -s 2",
    "ucp_cswap -s 16",
    "ucp_put_lat -D iov -s 16,48,300",
    "ucp_put_bw -D iov -s 9000,5",
    "ucp_put_bw -D iov -s 20k:4 -O 4",
    "ucp_get -D iov -s 10k:4",
    "ucp_get -D iov -s 1,2,3,4",
];

const MAIL: &[&str] = &[
    "ucp_am_lat",
    "ucp_am_lat -s 0 -H 16",
    "ucp_am_lat -s 3 -E sleep",
    "ucp_am_bw -H 32",
    "ucp_am_bw -s 5000",
    "ucp_am_bw -s 100k -n 300",
    "stream_lat",
    "stream_lat -s 20k -E sleep",
    "stream_bw -s 100",
    "stream_bw -s 200k",
    "ucp_am_lat -y -s 300",
    "ucp_am_bw -y -s 20k",
    "ucp_am_bw -D iov -s 100:5 -i 200",
    "stream_lat -D iov -s 7,9",
    "stream_bw -D contig,iov -s 3k:3",
    "stream_lat -r recv_data -s 300",
    "stream_bw -r recv_data -s 20k",
    "stream_bw -r recv_data -s 5",
];

#[test]
fn active_messages_and_streams() {
    each("posix", "", MAIL);
    each("efa", "", MAIL);
    for test in MAIL {
        run_ok(&format!("-l --validate -n 200 -w 10 -x posix,self -t {test}"));
    }
}

#[test]
fn posix_messages() {
    each("posix", "-d memory", AM);
    each("posix", "--own", AM);
}

#[test]
fn posix_memory() {
    each("posix", "", RMA);
    each("posix", "", SHM_ONLY);
}

#[test]
fn cma_memory() {
    each("cma", "", RMA);
    each("cma", "--own", RMA);
}

#[test]
fn posix_tags() {
    each("posix", "", TAG);
}

#[test]
fn efa_messages() {
    each("efa", "-d softefa0", AM);
}

#[test]
fn efa_memory() {
    each("efa", "", RMA);
    each("efa", "--own", RMA);
}

#[test]
fn efa_tags() {
    each("efa", "", TAG);
}

#[test]
fn one_sided() {
    each("posix", "", ONE_SIDED);
    each("efa", "", ONE_SIDED);
}

#[test]
fn loopback_runs_all_tests() {
    for tl in ["self", "posix"] {
        for test in AM.iter().chain(RMA).chain(SHM_ONLY) {
            run_ok(&format!("-l --validate -n 200 -w 10 -x {tl} -t {test}"));
        }
    }
    for test in TAG.iter().chain(ONE_SIDED) {
        run_ok(&format!("-l --validate -n 200 -w 10 -x posix,self -t {test}"));
    }
}

#[test]
fn server_and_client_measure() {
    let server = Server::start("");
    let port = server.port.to_string();
    let client = program()
        .args([
            "127.0.0.1",
            "-p",
            &port,
            "-t",
            "am_lat",
            "-x",
            "posix",
            "-d",
            "memory",
            "-n",
            "500",
            "--validate",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(client.stdout).unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    // A busy machine takes more than a second, and each has its line.
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("[thread 0]")).collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[5].starts_with("Final:                   500 "), "{text}");
    let ran = server.finish();
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let box_of = [
        "| API:          transport layer                                                                            |",
        "| Test:         active message latency                                                                     |",
        "| Message size: 8                                                                                          |",
    ];
    assert!(ran.out.starts_with("Accepted connection from 127.0.0.1:"), "{}", ran.out);
    for line in box_of {
        assert!(ran.out.lines().any(|l| l == line), "{}", ran.out);
    }
}

#[test]
fn first_side_may_leave() {
    for _ in 0..20 {
        let server = Server::start("");
        let line = format!("127.0.0.1 -p {} -q -f -t am_lat -x posix -n 10", server.port);
        assert_eq!(run_ok(&line).lines().count(), 1);
        let ran = server.finish();
        assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    }
}

#[test]
fn extra_column_has_transport_and_protocol() {
    let text = run_ok("--local -q -f -X -n 300 -x posix -d memory -t tag_lat");
    assert!(text.trim_end().ends_with("  posix/memory eager") && text.lines().count() == 1, "{text}");
}

#[test]
fn batch_prints_csv_json_and_columns() {
    let file = std::env::temp_dir().join(format!("perftest-batch-{}", std::process::id()));
    std::fs::write(&file, "# two tests\nlat -t tag_lat\nbw -t tag_bw -s 1k\n").unwrap();
    let line = |more: &str| run_ok(&format!("--local -q -n 300 -x posix -b {} {more}", file.display()));
    let csv = line("-v");
    let rows: Vec<&str> = csv.lines().collect();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        rows[0],
        format!(
            "{name},iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"
        )
    );
    assert!(rows[1].starts_with("lat,300,") && rows[2].starts_with("bw,300,"), "{csv}");
    assert!(rows.iter().all(|r| r.split(',').count() == 9), "{csv}");
    // With a range of sizes each row has a cell for the size.
    std::fs::write(&file, "a/b -t tag_lat\nbw -t tag_bw -s 1k\nall,of -t tag_lat\n").unwrap();
    let csv = line("-v -s 8..16");
    let rows: Vec<&str> = csv.lines().collect();
    assert!(rows[0].starts_with(&format!("{name},size,iterations,")), "{csv}");
    for (row, start) in rows[1..].iter().zip([
        "a/b,8,300,",
        "a/b,16,300,",
        "bw,1024,300,",
        "\"all,of\",8,300,",
        "\"all,of\",16,300,",
    ]) {
        assert!(row.starts_with(start), "{csv}");
        let commas = row.matches(',').count() - usize::from(row.contains('"'));
        assert_eq!(commas, rows[0].matches(',').count(), "{csv}");
    }
    std::fs::write(&file, "# two tests\nlat -t tag_lat\nbw -t tag_bw -s 1k\n").unwrap();
    let json = line("--json");
    assert_eq!(json.lines().count(), 2);
    assert!(json.starts_with("{\"label\":\"lat\",\"test\":\"tag_lat\""), "{json}");
    let text = line("-f");
    assert!(text.lines().any(|l| l.starts_with("       lat               300 ")), "{text}");
    // Each banner has an end.
    let text = run_ok(&format!("--local -n 300 -x posix -f -b {}", file.display()));
    let rows: Vec<&str> = text.lines().collect();
    let second = rows.iter().position(|l| l.starts_with("        bw ")).unwrap();
    assert!(rows[second - 1].starts_with("+---") && rows[second - 2].starts_with("| Window size:"), "{text}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn histogram_counts_every_iteration() {
    let out = run_ok("--local --json --hist -n 500 -w 10 -x posix -t am_lat -s 8..16");
    assert_eq!(out.lines().count(), 2, "{out}");
    for line in out.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let bins = value["histogram_us"].as_array().unwrap();
        assert_eq!(bins.iter().map(|b| b[1].as_u64().unwrap()).sum::<u64>(), 500, "{line}");
    }
    let text = run_ok("--local -q -f --hist -n 500 -x posix -t am_lat");
    assert!(text.lines().nth(1).unwrap().contains(" usec "), "{text}");
    assert!(text.trim_end().lines().last().unwrap().contains("100.0000 % #"), "{text}");
}

#[test]
fn runs_are_saved_and_drawn_together() {
    let file = |name: &str| std::env::temp_dir().join(format!("perftest-plot-{}-{name}", std::process::id()));
    let (saved, drawn) = (file("old.json"), file("both.svg"));
    let old = run_ok("--local --json -n 200 -x posix -t tag_lat -s 8..64");
    std::fs::write(&saved, &old).unwrap();
    let line = format!(
        "--local -q -f -n 200 -x efa -t tag_lat -s 8..64 --plot {} --with {}",
        drawn.display(),
        saved.display()
    );
    assert_eq!(run_ok(&line).lines().count(), 4);
    let svg = std::fs::read_to_string(&drawn).unwrap();
    let name = saved.file_stem().unwrap().to_str().unwrap();
    assert!(
        svg.contains("tag latency efa, this run") && svg.contains(&format!("tag latency posix, {name}")),
        "{svg}"
    );
    assert_eq!(svg.matches("<circle").count(), 8);
    // Without a test nothing is measured.
    let again = format!("--plot {} --with {}", drawn.display(), saved.display());
    assert_eq!(run_ok(&again), "");
    assert_eq!(std::fs::read_to_string(&drawn).unwrap().matches("<circle").count(), 4);
    std::fs::remove_file(saved).unwrap();
    std::fs::remove_file(drawn).unwrap();
}
