//! A pickle read as data: the few opcodes that `torch.save` writes, and nothing that could run code.
//!
//! Only dictionaries, lists, tuples, strings, numbers and tensors can come out. Any other opcode or global is refused by
//! name. Format: Python's `pickletools`, protocol 2 to 5.

use std::collections::HashMap;

/// A value of the pickle. A dictionary is an index into [`Pickle`], because a pickle fills it after it has passed it on;
/// what a list holds is never asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Tuple(Vec<Value>),
    List,
    Dict(usize),
    Global(String),
    Storage(Storage),
    Tensor(StoredTensor),
}

/// A block of numbers in the archive: its element type as Torch names it, and its key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Storage {
    pub kind: String,
    pub key: String,
}

/// A view of a storage.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredTensor {
    pub storage: Storage,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// The outcome: the root and the containers it refers to.
#[derive(Debug)]
pub(crate) struct Pickle {
    pub root: Value,
    dicts: Vec<Vec<(Value, Value)>>,
}

impl Pickle {
    /// Reads a pickle.
    ///
    /// # Errors
    /// A sentence about the first thing that is not data.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        Machine::new(bytes).run()
    }

    /// All tensors below the root with dotted names, `t3.speaker_emb`; values that are no tensor are left out.
    pub(crate) fn tensors(&self) -> Vec<(String, StoredTensor)> {
        let mut out = Vec::new();
        self.collect(&self.root, String::new(), 0, &mut out);
        out
    }

    fn collect(&self, value: &Value, name: String, depth: usize, out: &mut Vec<(String, StoredTensor)>) {
        // A container may hold itself; no checkpoint is nested deeper than this.
        if depth > 8 {
            return;
        }
        match value {
            Value::Tensor(tensor) => out.push((name, tensor.clone())),
            Value::Dict(at) => {
                for (key, value) in &self.dicts[*at] {
                    if let Value::Str(key) = key {
                        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                        self.collect(value, name, depth + 1, out);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The globals that stand for data; all others are refused.
fn is_data(global: &str) -> bool {
    matches!(
        global,
        "collections.OrderedDict"
            | "torch._utils._rebuild_tensor_v2"
            | "torch._utils._rebuild_parameter"
            | "torch.Size"
    ) || global.strip_prefix("torch.").is_some_and(|name| storage_bytes(name).is_some())
}

/// Bytes of one element of a Torch storage.
pub(crate) fn storage_bytes(kind: &str) -> Option<usize> {
    Some(match kind {
        "DoubleStorage" | "LongStorage" => 8,
        "FloatStorage" | "IntStorage" => 4,
        "HalfStorage" | "BFloat16Storage" | "ShortStorage" => 2,
        "ByteStorage" | "CharStorage" | "BoolStorage" => 1,
        _ => return None,
    })
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<usize, Value>,
    dicts: Vec<Vec<(Value, Value)>>,
}

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, stack: vec![], marks: vec![], memo: HashMap::new(), dicts: vec![] }
    }

    fn run(mut self) -> Result<Pickle, String> {
        loop {
            let op = self.take(1)?[0];
            if op == b'.' {
                let root = self.pop()?;
                return Ok(Pickle { root, dicts: self.dicts });
            }
            self.step(op)?;
        }
    }

    fn step(&mut self, op: u8) -> Result<(), String> {
        match op {
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'K' => self.push_int(1)?,
            b'M' => self.push_int(2)?,
            b'J' => {
                let word = self.take(4)?;
                self.stack.push(Value::Int(i32::from_le_bytes([word[0], word[1], word[2], word[3]]).into()));
            }
            0x8a => self.long1()?,
            b'G' => {
                let mut word = [0; 8];
                word.copy_from_slice(self.take(8)?);
                self.stack.push(Value::Float(f64::from_be_bytes(word)));
            }
            b'X' => self.text(4)?,
            0x8c => self.text(1)?,
            b'}' => {
                self.dicts.push(vec![]);
                self.stack.push(Value::Dict(self.dicts.len() - 1));
            }
            b']' => self.stack.push(Value::List),
            b')' => self.stack.push(Value::Tuple(vec![])),
            0x85..=0x87 => self.tuple(usize::from(op - 0x84))?,
            b't' => {
                let items = self.pop_to_mark()?;
                self.stack.push(Value::Tuple(items));
            }
            b'q' => self.put(1)?,
            b'r' => self.put(4)?,
            0x94 => {
                let value = self.top()?.clone();
                self.memo.insert(self.memo.len(), value);
            }
            b'h' => self.get(1)?,
            b'j' => self.get(4)?,
            b'c' => self.global()?,
            0x93 => self.stack_global()?,
            b'Q' => self.persistent()?,
            b'R' => self.reduce()?,
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(vec![key, value])?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set_items(items)?;
            }
            b'a' => {
                self.pop()?;
                self.appended()?;
            }
            b'e' => {
                self.pop_to_mark()?;
                self.appended()?;
            }
            // The attributes of an ordered dictionary (`_metadata`): no data of ours.
            b'b' => drop(self.pop()?),
            b'0' => drop(self.pop()?),
            _ => return Err(format!("it contains pickle opcode 0x{op:02x}, which no weight file needs")),
        }
        Ok(())
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| "its pickle ends in the middle".to_owned())?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn unsigned(&mut self, n: usize) -> Result<usize, String> {
        Ok(self.take(n)?.iter().rev().fold(0, |acc, &b| (acc << 8) | usize::from(b)))
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&b| b == b'\n').ok_or_else(|| "its pickle ends in the middle".to_owned())?;
        self.at += end + 1;
        String::from_utf8(rest[..end].to_vec()).map_err(|_| "a name in its pickle is not text".to_owned())
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(|| "its pickle takes more than it gives".to_owned())
    }

    fn top(&self) -> Result<&Value, String> {
        self.stack.last().ok_or_else(|| "its pickle takes more than it gives".to_owned())
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len());
        let mark = mark.ok_or_else(|| "its pickle lacks a mark".to_owned())?;
        Ok(self.stack.split_off(mark))
    }

    fn push_int(&mut self, n: usize) -> Result<(), String> {
        let value = self.unsigned(n)? as i64;
        self.stack.push(Value::Int(value));
        Ok(())
    }

    fn long1(&mut self) -> Result<(), String> {
        let n = self.unsigned(1)?;
        if n > 8 {
            return Err("it contains a number of more than 64 bits".to_owned());
        }
        let bytes = self.take(n)?;
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut word = [if negative { 0xff } else { 0 }; 8];
        word[..n].copy_from_slice(bytes);
        self.stack.push(Value::Int(i64::from_le_bytes(word)));
        Ok(())
    }

    fn text(&mut self, length_bytes: usize) -> Result<(), String> {
        let n = self.unsigned(length_bytes)?;
        let text =
            String::from_utf8(self.take(n)?.to_vec()).map_err(|_| "a string in its pickle is not text".to_owned())?;
        self.stack.push(Value::Str(text));
        Ok(())
    }

    fn tuple(&mut self, n: usize) -> Result<(), String> {
        if self.stack.len() < n {
            return Err("its pickle takes more than it gives".to_owned());
        }
        let items = self.stack.split_off(self.stack.len() - n);
        self.stack.push(Value::Tuple(items));
        Ok(())
    }

    fn put(&mut self, n: usize) -> Result<(), String> {
        let at = self.unsigned(n)?;
        let value = self.top()?.clone();
        self.memo.insert(at, value);
        Ok(())
    }

    fn get(&mut self, n: usize) -> Result<(), String> {
        let at = self.unsigned(n)?;
        let value = self.memo.get(&at).cloned().ok_or_else(|| "its pickle refers to nothing".to_owned())?;
        self.stack.push(value);
        Ok(())
    }

    fn global(&mut self) -> Result<(), String> {
        let name = format!("{}.{}", self.line()?, self.line()?);
        self.push_global(name)
    }

    fn stack_global(&mut self) -> Result<(), String> {
        match (self.pop()?, self.pop()?) {
            (Value::Str(name), Value::Str(module)) => self.push_global(format!("{module}.{name}")),
            _ => Err("a global in its pickle has no name".to_owned()),
        }
    }

    fn push_global(&mut self, name: String) -> Result<(), String> {
        if !is_data(&name) {
            return Err(format!(
                "it asks for {name}, which is code and not data; Myna never runs code from a weight file"
            ));
        }
        self.stack.push(Value::Global(name));
        Ok(())
    }

    /// `("storage", torch.FloatStorage, key, location, count)`.
    fn persistent(&mut self) -> Result<(), String> {
        if let Value::Tuple(items) = self.pop()?
            && let [Value::Str(tag), Value::Global(kind), Value::Str(key), ..] = items.as_slice()
            && tag == "storage"
            && let Some(kind) = kind.strip_prefix("torch.").filter(|kind| storage_bytes(kind).is_some())
        {
            self.stack.push(Value::Storage(Storage { kind: kind.to_owned(), key: key.clone() }));
            return Ok(());
        }
        Err("it refers to something outside that is not a block of numbers".to_owned())
    }

    fn reduce(&mut self) -> Result<(), String> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::Tuple(arguments), Value::Global(function)) = (arguments, function) else {
            return Err("its pickle calls something that is not a known constructor".to_owned());
        };
        let value = match (function.as_str(), arguments.as_slice()) {
            ("torch._utils._rebuild_tensor_v2", [Value::Storage(storage), Value::Int(offset), shape, strides, ..]) => {
                let offset = usize::try_from(*offset).map_err(|_| "a tensor starts before its storage".to_owned())?;
                let (shape, strides) = (dims(shape)?, dims(strides)?);
                if shape.len() != strides.len() {
                    return Err("a tensor has a shape and strides of different rank".to_owned());
                }
                Value::Tensor(StoredTensor { storage: storage.clone(), offset, shape, strides })
            }
            ("torch._utils._rebuild_parameter", [tensor @ Value::Tensor(_), ..]) => tensor.clone(),
            ("torch.Size", [Value::Tuple(items)]) => Value::Tuple(items.clone()),
            ("collections.OrderedDict", []) => {
                self.dicts.push(vec![]);
                Value::Dict(self.dicts.len() - 1)
            }
            _ => return Err(format!("it calls {function} in a way that is not data")),
        };
        self.stack.push(value);
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Value>) -> Result<(), String> {
        let Value::Dict(at) = *self.top()? else {
            return Err("its pickle puts a key into something that is no dictionary".to_owned());
        };
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            self.dicts[at].push((key, value));
        }
        Ok(())
    }

    fn appended(&self) -> Result<(), String> {
        match self.top()? {
            Value::List => Ok(()),
            _ => Err("its pickle appends to something that is no list".to_owned()),
        }
    }
}

fn dims(value: &Value) -> Result<Vec<usize>, String> {
    let Value::Tuple(items) = value else {
        return Err("a tensor has no shape".to_owned());
    };
    let one = |item: &Value| match item {
        Value::Int(n) => usize::try_from(*n).ok(),
        _ => None,
    };
    items
        .iter()
        .map(|item| one(item).ok_or_else(|| "a tensor has a shape that is not made of numbers".to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn code_is_refused_by_name() {
        // pickle.dumps of an object whose __reduce__ is (os.system, ("true",)), protocol 2.
        let hostile = b"\x80\x02cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.";
        let error = Pickle::parse(hostile).unwrap_err();
        assert!(error.contains("posix.system"), "{error}");
    }

    #[test]
    fn builtins_and_nested_getattr_are_refused() {
        for global in
            ["builtins.eval", "builtins.getattr", "torch.load", "torch.hub.load", "os.system", "torch._utils.x"]
        {
            let (module, name) = global.rsplit_once('.').unwrap();
            let bytes = format!("\u{2}c{module}\n{name}\n.").into_bytes();
            let bytes = [&[0x80][..], &bytes].concat();
            assert!(Pickle::parse(&bytes).unwrap_err().contains(global));
        }
    }

    #[test]
    fn plain_values_come_out() {
        // {"a": [1, -2, 2.5, None, True]}, protocol 2
        let bytes = b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG\x40\x04\x00\x00\x00\x00\x00\x00N\x88es.";
        let pickle = Pickle::parse(bytes).unwrap();
        assert_eq!(pickle.root, Value::Dict(0));
        assert_eq!(pickle.dicts[0], vec![(Value::Str("a".into()), Value::List)]);
        // (1, -2, 2.5, None, True), protocol 2
        let tuple = b"\x80\x02(K\x01J\xfe\xff\xff\xffG\x40\x04\x00\x00\x00\x00\x00\x00N\x88t.";
        let items = vec![Value::Int(1), Value::Int(-2), Value::Float(2.5), Value::None, Value::Bool(true)];
        assert_eq!(Pickle::parse(tuple).unwrap().root, Value::Tuple(items));
    }

    #[test]
    fn every_truncation_is_an_error_and_not_a_panic() {
        let bytes = b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG\x40\x04\x00\x00\x00\x00\x00\x00N\x88es.";
        for end in 0..bytes.len() {
            assert!(Pickle::parse(&bytes[..end]).is_err(), "{end}");
        }
        for op in 0..=255u8 {
            let _ = Pickle::parse(&[op, op, b'.']);
        }
    }
}
