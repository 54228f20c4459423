use super::*;

fn read(line: &str) -> Result<Cli, String> {
    Cli::read(std::iter::once("ucx-perftest").chain(line.split_whitespace()))
        .map_err(|e| e.map_or_else(|| "help".into(), |e| e.to_string()))
}

fn specs(line: &str) -> Result<Vec<Spec>, String> {
    read(line)?.test.specs(&[]).map_err(|e| e.to_string())
}

fn spec(line: &str) -> Spec {
    specs(line).unwrap().remove(0)
}

#[test]
fn defaults_equal_those_of_ucx_perftest() {
    let s = spec("host -t am_lat -x posix -d memory");
    assert_eq!((s.size(), s.iters, s.warmup, s.window, s.credits), (8, 1_000_000, 10_000, 1, 127));
    assert_eq!((s.layout, s.validate, s.label()), (None, Validate::No, None));
    assert_eq!(spec("host -t tag_bw").window, 32);
    assert_eq!(
        (spec("host -t put_bw -x posix -O 0").window, spec("host -t am_bw -x posix -O 0").window),
        (32, 1)
    );
    assert_eq!(spec("host -t tag_lat -n 50").warmup, 5);
    let cli = read("").unwrap();
    assert_eq!((cli.port, cli.test.rank(), cli.host), (13337, 50.0, None));
}

#[test]
fn sizes_are_pieces_or_ranges() {
    assert_eq!(spec("-l -t am_bw -x self -D zcopy -s 16,48").pieces, [16, 48]);
    assert_eq!(spec("-l -t tag_bw -s 64k").size(), 65536);
    let sweep = specs("-l -t tag_bw -s 6..40").unwrap();
    assert_eq!(sweep.iter().map(Spec::size).collect::<Vec<_>>(), [6, 8, 16, 32, 40]);
    assert_eq!(sweep[4].label().as_deref(), Some("40"));
    assert_eq!(specs("-l -t tag_bw -s 0..2").unwrap().iter().map(Spec::size).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(specs("-l -t tag_bw -s 8..8").unwrap().len(), 1);
    assert_eq!(spec("-l -t tag_bw -D iov -s 1k:3,7").pieces, [1024, 1024, 1024, 7]);
}

#[test]
fn layouts_without_pieces_send_their_sum() {
    for line in
        ["-l -t tag_bw", "-l -t tag_bw -D contig", "-l -t am_bw -x self -D bcopy", "-l -t put_bw -x self"]
    {
        let spec = spec(&format!("{line} -s 16,48 -i 32"));
        assert_eq!((&spec.pieces[..], spec.stride, spec.span()), (&[64][..], 0, 64), "{line}");
    }
    let spec = spec("-l -t tag_bw -D contig,iov -s 16,48 -i 64");
    assert_eq!((&spec.pieces[..], spec.stride), (&[16, 48][..], 64));
}

#[test]
fn layouts_of_sender_and_receiver() {
    let of = |line: &str| {
        let spec = spec(line);
        (spec.layout, spec.recv_layout)
    };
    assert_eq!(of("-l -t tag_bw"), (None, None));
    assert_eq!(of("-l -t tag_bw -D iov"), (Some(Layout::Iov), Some(Layout::Iov)));
    assert_eq!(of("-l -t tag_bw -D contig,iov"), (Some(Layout::Contig), Some(Layout::Iov)));
    assert_eq!(of("-l -t am_bw -x self -D bcopy"), (Some(Layout::Bcopy), None));
}

#[test]
fn mode_of_e_must_be_attached() {
    assert!(spec("host -t tag_lat -e").peer_errors && spec("host -e -t tag_lat -epeer").peer_errors);
    assert!(!spec("host -t tag_lat -enone").peer_errors && !spec("host -t tag_lat").peer_errors);
    assert_eq!(read("-e host -t tag_lat").unwrap().host.as_deref(), Some("host"), "a host is no mode");
}

#[test]
fn errors_have_one_line_with_alternatives() {
    for (line, want) in [
        ("-t am_latt", "-t: test 'am_latt' is unknown (there are: am_lat, put_lat, "),
        (
            "-t am_lat -x posix -D zerocopy",
            "data layout 'zerocopy' is unknown: one of short, shortiov, bcopy, zcopy",
        ),
        ("-t am_lat -x posix -s 8q", "'8q' is not a size (a number of bytes, or with k, m, g such as 64k)"),
        ("-t tag_lat -s 8..", "'' is not a size"),
        ("-t am_lat -x posix -s 9..8", "'9..8' is not a range of sizes (smallest..largest)"),
        ("-t am_lat", "am_lat needs -x (see `ucx-info -d` for transports and devices)"),
        ("-t fadd -x posix -s 12", "-s 12: fadd works on words of 1, 2, 4, 8 or 16 bytes"),
        ("-t put_lat -x posix -s 0", "-s 0: put_lat needs at least 1 byte"),
        ("-t tag_lat -D bcopy", "-D bcopy is for low-level tests, tag_lat has: contig, iov"),
        (
            "-t am_lat -x posix -D iov",
            "-D iov is for high-level tests, am_lat has: short, shortiov, bcopy, zcopy",
        ),
        ("-t am_lat -x posix -D bcopy,bcopy", "-D: am_lat has one layout"),
        ("-t tag_lat -D contig,zcopy", "-D zcopy is for low-level tests, tag_lat receives: contig, iov"),
        ("-t ucp_put_bw -D iov,contig -s 8,8", "-D: ucp_put_bw has one layout"),
        ("-t ucp_put_bw -D iov -s 8:5", "-s: ucp_put_bw takes up to 4 pieces"),
        ("-t ucp_get -D iov -s 8,0", "-D iov: pieces of ucp_get lie side by side and are not empty"),
        ("-t ucp_fadd -D iov", "-D: ucp_fadd passes its word in the call (short)"),
        ("-t tag_lat -D iov -s 8:65", "-s: 1 to 64 pieces make a message, not 65"),
        ("-t tag_lat -s 8:", "'8:' is not a size and how many pieces of it"),
        ("-t tag_lat -y", "-y is for ucp_am_lat and ucp_am_bw, not for tag_lat"),
        ("-t tag_lat -efailover", "-efailover: lanes that are lost are replaced in any case here"),
        ("-t tag_lat -g 1.2.3.4", "-g: there is no daemon to give operations to"),
        ("-t tag_lat -F 8", "-F: this program was built without accelerators"),
        ("-t am_lat -x posix -D zcopy -s 100,8 -i 64", "-i 64: pieces of 100 bytes would overlap"),
        ("-t tag_lat -B --own", "-B is for low-level tests and, with --own, for one-sided ones"),
        ("-t ucp_put_bw -B", "-B is for low-level tests and, with --own, for one-sided ones"),
        ("-t am_lat -x posix -z", "-z is for high-level tests in pairs, not for am_lat"),
        ("-t tag_lat -m foo", "-m: memory 'foo' is unknown (there is: host)"),
        ("-t tag_lat -m host,host,host", "-m host,host,host: one kind of memory, or two"),
        ("-t tag_lat -A poll", "-A: mode 'poll' is unknown"),
        ("localhost -t tag_lat -K mlx5_0:1", "-K: no InfiniBand management datagrams here"),
        ("-l -t tag_lat -v --hist", "cannot be used with"),
        ("-t tag_lat -T 65", "-T: 65 is not in 1..=64"),
        ("-t tag_lat --procs 4", "--procs needs --local, or a launcher such as mpirun or srun"),
        ("--local -t tag_lat --procs 1", "--procs: 1 is not in 2..=64"),
        ("--local -t tag_bw --pattern ring", "pattern 'ring' is unknown: one of pairs, incast, alltoall"),
        (
            "--local -t tag_lat --pattern incast",
            "--pattern incast is not for tag_lat (it is for: am_bw, am_mr, put_bw, get, get_bw, add_mr, fadd, swap, cswap, tag_bw, tag_sync_bw, stream_bw, ucp_am_bw, ucp_put_bw, ucp_get, ucp_add, ucp_fadd, ucp_swap, ucp_cswap)",
        ),
        (
            "--local -t am_bw -x posix -s 7 --pattern alltoall",
            "-s 7: am_bw with --pattern alltoall needs 8 bytes to say who sends",
        ),
        ("--local -t tag_bw --pattern incast -U", "-U is for tests in pairs, not for --pattern incast"),
        (
            "--local -t ucp_put_bw --pattern alltoall -o",
            "-o is for tests in pairs, not for --pattern alltoall",
        ),
        ("--local -t put_bw -x posix -D zcopy -i 64 --pattern incast", "-i is for tests in pairs"),
        ("-t tag_lat -m cuda", "-m cuda: this program was built without CUDA (there is: host)"),
        ("-t tag_lat -H 8", "-H is for tests of active messages, not for tag_lat"),
        ("-t put_lat -x posix -H 9", "-H is for tests of active messages, not for put_lat"),
        (
            "-t am_lat -x posix -H 9",
            "-H 9: low-level messages have a header of 8 bytes, or with -D zcopy another",
        ),
        (
            "-t am_lat -x posix -D zcopy -s 16,48 -H 17",
            "-H 17: a header is the first bytes of the first piece",
        ),
        ("-t ucp_am_bw -H 4097", "-H 4097: a header has at most 4096 bytes"),
        ("-t stream_bw -s 0", "-s 0: stream_bw needs at least 1 byte"),
        ("-t tag_lat -E doze", "wait mode 'doze' is unknown: one of poll, sleep"),
        ("-l -x self -t am_lat -E sleep", "-E sleep is for high-level tests, not for am_lat"),
        ("-t tag_lat -r recv_data", "-r is for stream_lat and stream_bw, not for tag_lat"),
        ("-t stream_bw -r nothing", "receive mode 'nothing' is unknown: one of recv, recv_data"),
        ("-t tag_lat -n 0", "-n: at least 1 iteration"),
        ("-t tag_lat -n 2t", "-n, -w: at most 1099511627776 iterations, not 2199023255552"),
        ("-t tag_lat -n 9 -w 2t", "-n, -w: at most 1099511627776 iterations"),
        ("-t am_bw -x posix -V -n 16g", "-V: at most 8589934592 messages of am_bw are checked"),
        ("-t tag_lat -n many", "'many' is not a count"),
        ("-t tag_lat -n -5", "-n: '-5' is not a count"),
        ("-t tag_lat -w -1", "-w: '-1' is not a count"),
        ("-t tag_lat -s -8", "-s: '-8' is not a size"),
        ("-t tag_lat -O -2", "-O: "),
        ("-t am_bw -x posix -W -2", "-W: "),
        ("-t tag_lat -T -2", "-T: -2 is not in 1..=64"),
        ("-t tag_lat -R -1", "-R: '-1' is not a percentile (0 to 100)"),
        ("-t tag_lat -p -1", "-p: '-1' is not a port"),
        ("-t tag_lat -i -1", "-i: '-1' is not a size"),
        ("-t ucp_am_lat -H -1", "-H: '-1' is not a size"),
        ("-t tag_lat -c -1", "-c: bad cpu list"),
        ("-t tag_lat -O 70000", "-O 70000: from 1 to 65536 outstanding operations"),
        ("-t tag_lat -R 101", "'101' is not a percentile (0 to 100)"),
        ("-t tag_lat -c x", "bad cpu list \"x\": expected numbers and ranges such as 0-3,5"),
        ("", "no test: choose one with -t (see -h), or --local for a short sweep of tests"),
        ("--frobnicate", "unexpected argument '--frobnicate' found (see ucx-perftest -h)"),
        ("-p 99999", "'99999' is not a port (1 to 65535)"),
        ("-p 80x", "'80x' is not a port (1 to 65535)"),
    ] {
        let text = specs(line).unwrap_err();
        assert!(text.contains(want), "{line}: {text}");
        assert!(!text.contains('\n'), "{line}: {text}");
    }
}

#[test]
fn options_without_effect_are_accepted() {
    spec("host -t tag_lat -A thread -m host -T 1 -E poll -H 0 -I -M single");
    spec("host -t tag_lat -A signal -M multi");
    spec("host -t am_lat -x posix -H 8");
    spec("host -t am_lat -x posix -D zcopy -s 100 -H 0");
    spec("host -t ucp_put_bw -B --own");
}

#[test]
fn batch_line_overrides_command_line() {
    let base = read("-l -x self -n 500 -s 8").unwrap().test;
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let spec = read_line(&words("-t am_bw -s 64 --validate"))
        .unwrap()
        .test
        .over(&base)
        .specs(&["a".into()])
        .unwrap();
    assert_eq!((spec[0].size(), spec[0].iters, spec[0].tl.as_deref()), (64, 500, Some("self")));
    assert_eq!((spec[0].validate, spec[0].label().as_deref()), (Validate::Yes, Some("a")));
    let text = read_line(&words("-p 3")).unwrap_err().to_string();
    assert!(text.contains("unexpected argument '-p'"), "{text}");
}

#[test]
fn help_lists_every_option() {
    // Options between processes of this program, and the value of `-e`.
    const INTERNAL: [&str; 3] = ["peer_of", "proc", "errors"];
    let mut command = Cli::command();
    let texts = [command.render_help(), command.render_long_help()].map(|text| text.to_string());
    let listed = |name: &str| {
        texts.iter().all(|text| {
            text.lines().any(|l| l.trim_start().split([',', ' ']).any(|w| w == name) && l.starts_with("  "))
        })
    };
    for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
        let id = arg.get_id().as_str();
        let names: Vec<String> = arg
            .get_short()
            .map(|c| format!("-{c}"))
            .into_iter()
            .chain(arg.get_long().map(|long| format!("--{long}")))
            .collect();
        assert_eq!(arg.is_hide_set(), INTERNAL.contains(&id), "{id}");
        assert!(arg.is_hide_set() || names.iter().all(|name| listed(name)), "{names:?}\n{}", texts[0]);
    }
    for letter in ["-A", "-I", "-K", "-a", "-L", "-F", "-Y", "-g", "-G", "-m"] {
        assert!(listed(letter), "{letter}");
    }
}
