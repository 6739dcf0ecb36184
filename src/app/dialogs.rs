//! The system's own dialogs for files, which never keep the window waiting.

use std::path::PathBuf;

/// Called with the choice, or nothing, from another thread.
pub type Reply = Box<dyn FnOnce(Option<PathBuf>) + Send>;

/// Endings of files that can be a voice.
pub const CLIP_EXTENSIONS: [&str; 9] = ["wav", "flac", "mp3", "ogg", "m4a", "mp4", "aac", "aiff", "aif"];

/// A way to ask for files.
pub trait Dialogs: Send {
    /// A clip to use as a voice.
    fn open_clip(&self, reply: Reply);
    /// A folder with a model.
    fn model_folder(&self, reply: Reply);
    /// A place for a file of this name.
    fn save(&self, folder: Option<PathBuf>, name: String, reply: Reply);
    /// A folder for several files.
    fn save_folder(&self, folder: Option<PathBuf>, reply: Reply);
}

/// The dialogs of this system.
#[derive(Debug, Default)]
pub struct SystemDialogs;

impl Dialogs for SystemDialogs {
    fn open_clip(&self, reply: Reply) {
        let dialog = rfd::FileDialog::new().set_title("Choose a voice").add_filter("Sound", &CLIP_EXTENSIONS);
        ask(reply, move || dialog.pick_file());
    }

    fn model_folder(&self, reply: Reply) {
        let dialog = rfd::FileDialog::new().set_title("Choose a folder with a model");
        ask(reply, move || dialog.pick_folder());
    }

    fn save(&self, folder: Option<PathBuf>, name: String, reply: Reply) {
        let dialog = rfd::FileDialog::new().set_title("Save speech").set_file_name(name);
        ask(reply, move || beginning_at(dialog, folder).save_file());
    }

    fn save_folder(&self, folder: Option<PathBuf>, reply: Reply) {
        let dialog = rfd::FileDialog::new().set_title("Choose a folder for both takes and the report");
        ask(reply, move || beginning_at(dialog, folder).pick_folder());
    }
}

fn beginning_at(dialog: rfd::FileDialog, folder: Option<PathBuf>) -> rfd::FileDialog {
    match folder.filter(|folder| folder.is_dir()) {
        Some(folder) => dialog.set_directory(folder),
        None => dialog,
    }
}

fn ask(reply: Reply, question: impl FnOnce() -> Option<PathBuf> + Send + 'static) {
    let asked = std::thread::Builder::new().name("dialog".to_owned()).spawn(move || reply(question()));
    if let Err(error) = asked {
        tracing::error!(%error, "no thread for a dialog");
    }
}
