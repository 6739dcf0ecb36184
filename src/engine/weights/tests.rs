#![allow(clippy::unwrap_used)]

use std::io::Write;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny")).join(name)
}

fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn error_of(bytes: &[u8]) -> String {
    let error = Weights::open(written(bytes).path(), &Device::Cpu).unwrap_err();
    assert!(error.is_bad_input());
    error.to_string()
}

#[test]
fn a_torch_file_holds_the_same_tensors_as_its_safetensors_twin() {
    let torch = Weights::open(&fixture("legacy/ve.pt"), &Device::Cpu).unwrap();
    let twin = Weights::open(&fixture("shared/ve.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(torch.store.shapes, twin.store.shapes);
    for name in twin.store.shapes.keys() {
        let read = |w: &Weights| w.get_raw(name).unwrap().unwrap().to_dtype(DType::F32).unwrap().flatten_all().unwrap();
        assert_eq!(read(&torch).to_vec1::<f32>().unwrap(), read(&twin).to_vec1::<f32>().unwrap(), "{name}");
    }
}

#[test]
fn it_tells_how_much_was_asked_for() {
    let w = Weights::open(&fixture("shared/ve.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(w.asked_for(), 0.0);
    let mut before = 0.0;
    for name in w.store.shapes.keys() {
        w.get_raw(name).unwrap();
        assert!(w.asked_for() >= before);
        before = w.asked_for();
    }
    assert!((before - 1.0).abs() < 1e-4, "{before}");
}

#[test]
fn every_fault_is_listed_by_name_and_shape() {
    let w = Weights::open(&fixture("shared/ve.safetensors"), &Device::Cpu).unwrap();
    w.get("proj.bias", 3).unwrap();
    w.get("not.there", (2, 5)).unwrap();
    w.ignore("lstm");
    w.ignore("similarity");
    let text = w.finish().unwrap_err().to_string();
    assert!(text.contains("missing not.there [2, 5]"), "{text}");
    assert!(text.contains("proj.bias should have shape [3] but has ["), "{text}");
    assert!(text.contains("unused proj.weight"), "{text}");
    assert!(!text.contains("lstm"), "{text}");
}

#[test]
fn broken_files_say_what_is_wrong() {
    assert!(error_of(b"").contains("too short"));
    assert!(error_of(b"RIFF....WAVEfmt text text text").contains("header claims"));
    let whole = std::fs::read(fixture("shared/ve.safetensors")).unwrap();
    assert!(error_of(&whole[..whole.len() - 10]).contains("truncated"));
    assert!(error_of(&whole[..40]).contains("header claims"));
    let mut lying = whole.clone();
    lying[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(error_of(&lying).contains("header claims"));
    let mut garbled = whole;
    garbled[8] = b'?';
    assert!(error_of(&garbled).contains("not valid safetensors"));
    let torch = std::fs::read(fixture("legacy/ve.pt")).unwrap();
    assert!(error_of(&torch[..torch.len() / 2]).contains("not a PyTorch weight file"));
}

#[test]
fn a_header_whose_shape_disagrees_with_its_bytes_is_refused() {
    let header = br#"{"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(&[0; 4]);
    assert!(error_of(&bytes).contains("not valid safetensors"));
}

#[test]
fn a_missing_file_is_named() {
    let error = Weights::open(Path::new("no/such.safetensors"), &Device::Cpu).unwrap_err();
    assert!(error.to_string().contains("no/such.safetensors") && error.is_bad_input());
}
