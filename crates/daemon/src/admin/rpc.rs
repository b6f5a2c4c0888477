//! JSON-RPC 2.0: what a line asks, and the line that answers it.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The daemon refuses, or cannot do, what is asked; the message says why.
const REFUSED: i32 = -32000;
const NOT_JSON: i32 = -32700;
const NO_REQUEST: i32 = -32600;
const NO_METHOD: i32 = -32601;
const BAD_PARAMETERS: i32 = -32602;

/// The codes of errors, for the schema.
#[cfg(test)]
pub(super) const CODES: [(i32, &str); 5] = [
    (NOT_JSON, "the line is no JSON"),
    (NO_REQUEST, "it is no request of JSON-RPC 2.0, a batch, or too long"),
    (NO_METHOD, "there is no such method"),
    (BAD_PARAMETERS, "the parameters are not those of the method"),
    (REFUSED, "refused; the message says why and what to do"),
];

/// What the programs of earlier versions get that send `{"request": ..}`: the form of error that they print.
const OTHER_PROTOCOL: &str = "this daemon's admin socket speaks JSON-RPC 2.0 (docs/admin.md), and this request is of an older \
                              version; use fipsee of the daemon's version, and to upgrade an older daemon stop it and start the new one";

#[derive(Debug)]
pub(super) struct RpcError {
    code: i32,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    pub(super) fn no_method(method: &str) -> Self {
        let message = format!("there is no method '{}'; rpc.discover lists the methods", on_one_line(method));
        Self { code: NO_METHOD, message, data: None }
    }

    /// The client may open the disk's file itself and pass it.
    pub(super) fn pass_file(message: String) -> Self {
        Self { code: REFUSED, message, data: Some(json!({ "pass_file": true })) }
    }

    pub(super) fn too_long(limit: usize) -> Self {
        Self { code: NO_REQUEST, message: format!("a request has at most {limit} bytes; split it"), data: None }
    }
}

/// A refusal, by the message that says why.
impl From<String> for RpcError {
    fn from(message: String) -> Self {
        Self { code: REFUSED, message, data: None }
    }
}

#[derive(Debug)]
pub(super) enum Message {
    Call {
        id: Value,
        method: String,
        params: Option<Value>,
    },
    /// Nothing is done for it, and it has no answer.
    Notification,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    jsonrpc: String,
    /// `None`: there is none, so this is a notification.
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    method: String,
    params: Option<Value>,
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Parse a line; an error is the line that answers it.
pub(super) fn parse(line: &[u8]) -> Result<Message, String> {
    let not_understood = |code, text: &str| {
        let message = format!("cannot understand the request: {}", on_one_line(text));
        failure(&Value::Null, RpcError { code, message, data: None })
    };
    let value: Value = serde_json::from_slice(line).map_err(|error| not_understood(NOT_JSON, &error.to_string()))?;
    if value.is_array() {
        return Err(not_understood(NO_REQUEST, "batches are not supported; send each request in a line of its own"));
    }
    if value.get("request").is_some() && value.get("jsonrpc").is_none() {
        return Err(json!({ "error": OTHER_PROTOCOL }).to_string());
    }
    let Request { jsonrpc, id, method, params } =
        serde_json::from_value(value).map_err(|error| not_understood(NO_REQUEST, &error.to_string()))?;
    if jsonrpc != "2.0" {
        return Err(not_understood(NO_REQUEST, "\"jsonrpc\" must be \"2.0\""));
    }
    match id {
        None => Ok(Message::Notification),
        Some(id @ (Value::Null | Value::Number(_) | Value::String(_))) => Ok(Message::Call { id, method, params }),
        Some(_) => Err(not_understood(NO_REQUEST, "\"id\" must be a number or a string")),
    }
}

/// The parameters of a method, by name; none at all are those of a method that needs none.
pub(super) fn parameters<T: DeserializeOwned>(params: Option<Value>) -> Result<T, RpcError> {
    let wrong = |text: &str| RpcError { code: BAD_PARAMETERS, message: on_one_line(text), data: None };
    match params.unwrap_or_else(|| json!({})) {
        named @ Value::Object(_) => {
            serde_json::from_value(named).map_err(|error| wrong(&format!("the parameters are not understood: {error}")))
        }
        _ => Err(wrong("parameters are given by name: \"params\" must be an object")),
    }
}

pub(super) fn success(id: &Value, result: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()
}

pub(super) fn failure(id: &Value, RpcError { code, message, data }: RpcError) -> String {
    let mut error = json!({ "code": code, "message": message });
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()
}

/// The error quotes what was sent, which must not write lines or colours of its own into a log or onto a terminal.
fn on_one_line(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of the error that answers this line, and its id.
    fn refused(line: &str) -> (i64, Value) {
        let answer: Value = serde_json::from_str(&parse(line.as_bytes()).expect_err(line)).expect("JSON");
        assert_eq!(answer["jsonrpc"], "2.0");
        (answer["error"]["code"].as_i64().expect("a code"), answer["id"].clone())
    }

    #[test]
    fn what_is_no_request_is_answered_by_the_standard_codes() {
        for (line, code) in [
            ("", -32700),
            ("{\"jsonrpc\":\"2.0\"", -32700),
            ("[]", -32600),
            ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stat\"}]", -32600),
            ("1", -32600),
            ("{}", -32600),
            ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"stat\"}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"stat\"}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"id\":1}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stat\",\"more\":1}", -32600),
        ] {
            assert_eq!(refused(line), (code, Value::Null), "{line}");
        }
    }

    #[test]
    fn a_request_without_id_is_a_notification_and_one_with_null_is_not() {
        let of = |line: &str| parse(line.as_bytes()).expect(line);
        assert!(matches!(of("{\"jsonrpc\":\"2.0\",\"method\":\"reload\"}"), Message::Notification));
        let call = of("{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"reload\"}");
        assert!(matches!(call, Message::Call { id: Value::Null, params: None, .. }));
    }

    #[test]
    fn the_older_protocol_gets_the_error_that_it_prints() {
        let answer: Value = serde_json::from_str(&parse(b"{\"request\":\"list\"}").expect_err("older")).expect("JSON");
        assert!(answer["error"].as_str().expect("a text").contains("JSON-RPC 2.0"), "{answer}");
    }
}
