//! Fetching from a server on this machine that breaks off, lies and refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;

/// What the server does with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Honest,
    /// Ends the connection after so many bytes.
    BreaksOffAfter(usize),
    /// Sends the whole, whatever part was asked for.
    IgnoresRanges,
    /// Other bytes.
    Lies,
    Answers(&'static str),
}

struct Server {
    base: String,
    asked: Arc<Mutex<Vec<String>>>,
}

fn content(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Serves every file with the same content; the moods are used up one by one, the last one stays.
fn serve(content: Vec<u8>, moods: Vec<Mood>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    std::thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            answer(stream.unwrap(), &content, moods[i.min(moods.len() - 1)], &log);
        }
    });
    Server { base, asked }
}

fn answer(mut stream: TcpStream, content: &[u8], mood: Mood, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let (mut from, mut range) = (0, String::new());
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        if let Some(rest) = line.to_lowercase().strip_prefix("range: bytes=") {
            range = format!(" from {rest}");
            from = rest.trim_end_matches('-').parse().unwrap();
        }
    }
    log.lock().unwrap().push(request.split(' ').nth(1).unwrap_or_default().to_owned() + &range);
    if mood == Mood::IgnoresRanges {
        from = 0;
    }
    let status = match mood {
        Mood::Answers(status) => status,
        _ if from > 0 => "206 Partial Content",
        _ => "200 OK",
    };
    let rest = &content[from..];
    let body: Vec<u8> = match mood {
        Mood::Lies => rest.iter().map(|byte| byte ^ 1).collect(),
        Mood::Answers(_) => Vec::new(),
        _ => rest.to_vec(),
    };
    let length = body.len();
    let sent = if let Mood::BreaksOffAfter(n) = mood { &body[..n.min(length)] } else { &body[..] };
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(sent);
}

fn sha256(data: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn release_of(data: &[u8], files: &[&str]) -> Release {
    let file = |name: &&str| ReleaseFile { name: (*name).into(), bytes: data.len() as u64, sha256: sha256(data) };
    Release {
        name: "small".into(),
        title: "Small".into(),
        about: String::new(),
        repo: "somebody/small".into(),
        revision: "c0ffee".into(),
        files: files.iter().map(file).collect(),
    }
}

fn hub(server: &Server) -> Hub {
    Hub::at(&server.base).with_pause(Duration::from_millis(1))
}

fn get(release: &Release, models: &Path, server: &Server) -> Result<PathBuf> {
    fetch(release, models, &hub(server), &CancelToken::default(), &mut |_| ())
}

#[test]
fn every_file_arrives_whole_and_is_not_fetched_twice() {
    let data = content(300_000);
    let server = serve(data.clone(), vec![Mood::Honest]);
    let (folder, release) = (tempfile::tempdir().unwrap(), release_of(&data, &["t3.safetensors", "conds.pt"]));
    assert!(!release.is_there(folder.path()));
    let mut heard = Vec::new();
    let cancel = CancelToken::default();
    let at = fetch(&release, folder.path(), &hub(&server), &cancel, &mut |bytes| heard.push(bytes)).unwrap();
    for file in &release.files {
        assert_eq!(std::fs::read(at.join(&file.name)).unwrap(), data);
    }
    assert!(heard.is_sorted() && heard[0] == 0 && heard.last() == Some(&600_000), "{heard:?}");
    assert!(release.is_there(folder.path()));
    get(&release, folder.path(), &server).unwrap();
    let asked = server.asked.lock().unwrap();
    assert_eq!(asked[..], ["t3.safetensors", "conds.pt"].map(|f| format!("/somebody/small/resolve/c0ffee/{f}")));
}

#[test]
fn what_is_broken_off_goes_on_where_it_was() {
    let data = content(500_000);
    let server = serve(data.clone(), vec![Mood::BreaksOffAfter(200_000), Mood::BreaksOffAfter(50_000), Mood::Honest]);
    let (folder, release) = (tempfile::tempdir().unwrap(), release_of(&data, &["t3.safetensors"]));
    let at = get(&release, folder.path(), &server).unwrap();
    assert_eq!(std::fs::read(at.join("t3.safetensors")).unwrap(), data);
    let asked = server.asked.lock().unwrap();
    assert!(asked[1].ends_with(" from 200000-") && asked[2].ends_with(" from 250000-"), "{asked:?}");
}

#[test]
fn what_was_fetched_by_an_earlier_run_is_taken_up() {
    let data = content(400_000);
    let broken = serve(data.clone(), vec![Mood::BreaksOffAfter(150_000), Mood::Answers("503 Service Unavailable")]);
    let (folder, release) = (tempfile::tempdir().unwrap(), release_of(&data, &["t3.safetensors"]));
    let error = get(&release, folder.path(), &broken).unwrap_err();
    assert!(format!("{error:#}").contains("what was fetched is kept"), "{error:#}");
    assert!(!release.is_there(folder.path()));
    for mood in [Mood::IgnoresRanges, Mood::Honest] {
        let (copy, server) = (tempfile::tempdir().unwrap(), serve(data.clone(), vec![mood]));
        std::fs::create_dir(copy.path().join("small")).unwrap();
        let part = "small/t3.safetensors.part";
        std::fs::copy(folder.path().join(part), copy.path().join(part)).unwrap();
        let at = get(&release, copy.path(), &server).unwrap();
        assert_eq!(std::fs::read(at.join("t3.safetensors")).unwrap(), data);
        assert!(server.asked.lock().unwrap()[0].ends_with(" from 150000-"));
        assert!(!copy.path().join(part).exists());
    }
}

#[test]
fn a_file_that_is_not_the_one_meant_is_never_used() {
    let data = content(100_000);
    let server = serve(data.clone(), vec![Mood::Lies, Mood::Honest]);
    let (folder, release) = (tempfile::tempdir().unwrap(), release_of(&data, &["ve.safetensors"]));
    let error = format!("{:#}", get(&release, folder.path(), &server).unwrap_err());
    assert!(error.contains("ve.safetensors of Small") && error.contains("not the file that was meant"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path().join("small")).unwrap().count(), 0, "nothing wrong is left");
    get(&release, folder.path(), &server).unwrap();
    assert!(release.is_there(folder.path()));
}

#[test]
fn a_refusal_is_told_at_once_and_a_stop_keeps_what_is_there() {
    let data = content(2_000_000);
    let (folder, release) = (tempfile::tempdir().unwrap(), release_of(&data, &["t3.safetensors"]));
    let server = serve(data.clone(), vec![Mood::Answers("404 Not Found"), Mood::Honest]);
    let error = format!("{:#}", get(&release, folder.path(), &server).unwrap_err());
    assert!(error.contains("404") && server.asked.lock().unwrap().len() == 1, "{error}");
    let cancel = CancelToken::default();
    let stop = |bytes| {
        if bytes > 500_000 {
            cancel.cancel()
        }
    };
    let error = fetch(&release, folder.path(), &hub(&server), &cancel, &mut { stop }).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Error::Cancelled)), "{error:#}");
    let kept = folder.path().join("small/t3.safetensors.part").metadata().unwrap().len();
    assert!((500_000..2_000_000).contains(&kept), "{kept}");
    get(&release, folder.path(), &server).unwrap();
}

#[test]
fn nobody_there_is_said_with_the_address() {
    let data = content(10);
    let (folder, release) = (tempfile::tempdir().unwrap(), release_of(&data, &["t3.safetensors"]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let hub = Hub::at(&base).with_pause(Duration::from_millis(1));
    let error = fetch(&release, folder.path(), &hub, &CancelToken::default(), &mut |_| ()).unwrap_err();
    assert!(format!("{error:#}").contains(&base), "{error:#}");
}

#[test]
fn a_file_that_another_model_brought_is_not_fetched_again() {
    let models = tempfile::tempdir().unwrap();
    let (turbo, nano) = (release("turbo").unwrap(), release("nano").unwrap());
    let shared = turbo.files.iter().find(|file| file.name == "tokenizer_config.json").unwrap();
    std::fs::create_dir_all(turbo.folder(models.path())).unwrap();
    std::fs::create_dir_all(nano.folder(models.path())).unwrap();
    std::fs::write(turbo.folder(models.path()).join(&shared.name), vec![b' '; shared.bytes as usize]).unwrap();
    assert!(borrow(shared, models.path(), &nano.folder(models.path())));
    assert!(shared.is_there(&nano.folder(models.path())));
    assert!(!borrow(&turbo.files[0], models.path(), &nano.folder(models.path())));
}

#[test]
fn the_catalog_names_every_variant_and_the_files_its_loader_wants() {
    use myna_engine::Variant;
    assert_eq!(catalog().len(), Variant::ALL.len());
    for variant in Variant::ALL {
        let spec = variant.spec();
        let release = release(spec.name).unwrap_or_else(|| panic!("{} is not in the catalog", spec.name));
        assert!(
            release.revision.len() == 40 && release.files.iter().all(|file| file.sha256.len() == 64),
            "{release:?}"
        );
        let folder = tempfile::tempdir().unwrap();
        for file in &release.files {
            std::fs::write(folder.path().join(&file.name), b"").unwrap();
        }
        let found = myna_engine::inspect::inspect(folder.path()).unwrap();
        let found = found.variants.iter().find(|found| found.name == spec.name).unwrap();
        // The files are empty, which is another problem than that they are not there.
        let missing = found.problems.iter().find(|problem| problem.contains("missing"));
        assert_eq!(missing, None, "{}", spec.name);
    }
}
