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
        ask(reply, move || {
            let dialog = rfd::FileDialog::new().set_title("Save speech").set_file_name(name);
            match folder.filter(|folder| folder.is_dir()) {
                Some(folder) => dialog.set_directory(folder).save_file(),
                None => dialog.save_file(),
            }
        });
    }
}

fn ask(reply: Reply, question: impl FnOnce() -> Option<PathBuf> + Send + 'static) {
    let asked = std::thread::Builder::new().name("dialog".to_owned()).spawn(move || reply(question()));
    if let Err(error) = asked {
        tracing::error!(%error, "no thread for a dialog");
    }
}
