"""Keys: the handshake and the frames bit for bit as the Noise specification has them, and key files."""

import base64
import json
import stat
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from nowait.fleet.wire import secure
from nowait.fleet.wire.secure import (
    HEADER,
    NOISE,
    OVERHEAD,
    PREFIX,
    VERSION,
    Authentication,
    CipherState,
    ClientHandshake,
    Encryption,
    HostKey,
    ProtocolError,
    ServerHandshake,
    ServerKey,
    SymmetricState,
    drain_key_path,
    make_drain_key_file,
    make_key_file,
    read_drain_key,
    read_first,
    read_host_key,
    read_second,
    read_server_key,
    server_key_path,
    write_first,
    write_second,
)

VECTORS = json.loads(Path(__file__).with_name("noise_vectors.json").read_text())["vectors"]
SECRET = bytes(range(32))


def private_key(number):
    return X25519PrivateKey.from_private_bytes(bytes([number]) * 32)


# The handshake


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["protocol_name"])
def test_every_byte_is_that_of_the_published_vector(vector):
    field = {name: bytes.fromhex(text) for name, text in vector.items() if isinstance(text, str) and name[4] == "_"}
    messages = [[bytes.fromhex(each[name]) for name in ("payload", "ciphertext")] for each in vector["messages"]]
    assert vector["protocol_name"].encode() == NOISE
    [secret] = map(bytes.fromhex, vector["init_psks"])
    client_key, server_key, private = (
        X25519PrivateKey.from_private_bytes(field[name]) for name in ("init_ephemeral", "resp_ephemeral", "resp_static")
    )
    key = HostKey(secret, field["init_remote_static"])
    assert ServerKey(secret, private).for_hosts() == key
    client, server = (SymmetricState(field[f"{end}_prologue"], key.server) for end in ("init", "resp"))

    assert write_first(client, key, client_key, messages[0][0]) == messages[0][1]
    payload, public = read_first(server, ServerKey(secret, private), messages[0][1])
    assert payload == messages[0][0]
    assert write_second(server, server_key, public, messages[1][0]) == messages[1][1]
    assert read_second(client, client_key, messages[1][1]) == messages[1][0]

    assert client.hash.hex() == server.hash.hex() == vector["handshake_hash"]
    assert client.split() == server.split()
    directions = [CipherState(derived) for derived in client.split()]
    for number, (payload, sealed) in enumerate(messages[2:]):
        nonce = directions[number % 2].next_nonce()
        assert directions[number % 2].aead.encrypt(nonce, payload, b"") == sealed


def agreed(encrypt=True):
    """What both ends of one connection have after the handshake: of the client, of the server."""
    key = ServerKey(SECRET, private_key(100))
    client = ClientHandshake(key.for_hosts(), private_key(1), encrypt=encrypt)
    server = ServerHandshake(key, lambda: private_key(2), encrypt=encrypt)
    of_server = server.receive(client.greeting)
    return client.receive(server.greeting), of_server


def test_both_ends_have_the_same_keys_another_in_each_direction_and_the_same_binding():
    client, server = agreed()
    assert client.sealing._state._key == server.opening._state._key
    assert server.sealing._state._key == client.opening._state._key
    assert client.sealing._state._key != client.opening._state._key
    assert client.binding == server.binding
    plain, _ = agreed(encrypt=False)
    assert plain.binding != client.binding, "the first bytes are hashed"


def test_a_connection_with_the_same_keys_of_server_and_host_has_other_traffic_keys():
    key = ServerKey(SECRET, private_key(100))
    keys = set()
    for _ in range(3):
        client = ClientHandshake(key.for_hosts(), X25519PrivateKey.generate(), encrypt=True)
        ciphers = ServerHandshake(key, X25519PrivateKey.generate, encrypt=True).receive(client.greeting)
        keys |= {ciphers.sealing._state._key, ciphers.opening._state._key, ciphers.binding}
    assert len(keys) == 9


def test_for_a_stranger_the_server_makes_no_ephemeral_key_and_no_reply():
    made, key = [], ServerKey(SECRET, private_key(100))
    for wrong in (ServerKey(bytes(32), key.private), ServerKey(SECRET, private_key(101))):
        stranger = ClientHandshake(wrong.for_hosts(), private_key(1), encrypt=True)
        server = ServerHandshake(key, lambda: made.append(1), encrypt=True)
        with pytest.raises(ProtocolError, match="does not have the key of this server"):
            server.receive(stranger.greeting)
        assert (made, server.greeting) == ([], b"")


@pytest.mark.parametrize("end", ["client", "server"])
def test_the_prologue_is_hashed_so_both_ends_must_have_the_same(end):
    key = ServerKey(SECRET, private_key(100))
    public = key.for_hosts().server
    client, server = (SymmetricState(b"this" if name == end else b"other", public) for name in ("client", "server"))
    message = write_first(client, key.for_hosts(), private_key(1))
    with pytest.raises(InvalidTag):
        read_first(server, key, message)


def test_it_agrees_with_another_implementation():
    """With random keys and payloads, in both roles, and after the keys have changed."""
    pytest.importorskip("noise.connection")
    for number in range(10):
        key, prologue = ServerKey.new(), bytes([number])
        ephemeral, public = X25519PrivateKey.generate(), key.for_hosts().server
        state = SymmetricState(prologue, public)
        server = another_implementation(key, prologue, starts=False)
        assert server.read_message(write_first(state, key.for_hosts(), ephemeral, b"one")) == b"one"
        assert read_second(state, ephemeral, bytes(server.write_message(b"two"))) == b"two"
        check_that_it_is_understood(server, state, state.split()[1])

        state = SymmetricState(prologue, public)
        client = another_implementation(key, prologue, starts=True)
        payload, theirs = read_first(state, key, bytes(client.write_message(b"three")))
        assert payload == b"three"
        assert client.read_message(write_second(state, ephemeral, theirs, b"four")) == b"four"
        check_that_it_is_understood(client, state, state.split()[0])


def another_implementation(key, prologue, *, starts):
    from noise.connection import Keypair, NoiseConnection

    end = NoiseConnection.from_name(NOISE)
    if starts:
        end.set_as_initiator()
        end.set_keypair_from_public_bytes(Keypair.REMOTE_STATIC, key.for_hosts().server)
    else:
        end.set_as_responder()
        end.set_keypair_from_private_bytes(Keypair.STATIC, key.private.private_bytes_raw())
    end.set_psks(key.secret)
    end.set_prologue(prologue)
    end.start_handshake()
    return end


def check_that_it_is_understood(end, state, key):
    assert end.get_handshake_hash() == state.hash
    opening = CipherState(key)
    for change in (False, True):
        if change:
            end.rekey_outbound_cipher()
            opening._rekey()
        nonce = opening.next_nonce()
        assert opening.aead.decrypt(nonce, bytes(end.encrypt(b"frame")), b"") == b"frame"


# Frames


@pytest.mark.parametrize("cipher", [Encryption, Authentication])
def test_a_frame_is_aes_256_gcm_of_its_number_and_the_key_changes_as_specified(cipher, monkeypatch):
    monkeypatch.setattr(secure, "FRAMES_PER_KEY", 3)
    sealing, opening, key = cipher(SECRET), cipher(SECRET), SECRET
    for number in range(8):
        payload = bytes([number]) * 20
        frame = memoryview(bytearray(len(payload) + OVERHEAD))
        HEADER.pack_into(frame, 0, len(payload), 1, 0, 0)
        header = bytes(frame[: HEADER.size])
        sealing.seal(frame, payload)
        if number in (3, 6):
            key = AESGCM(key).encrypt(bytes(4) + (2**64 - 1).to_bytes(8, "big"), bytes(32), b"")[:32]
        nonce = bytes(4) + number.to_bytes(8, "big")
        if cipher is Encryption:
            assert frame[HEADER.size :] == AESGCM(key).encrypt(nonce, payload, header)
        else:
            assert frame[HEADER.size :] == payload + AESGCM(key).encrypt(nonce, b"", header + payload)
        out = memoryview(bytearray(len(payload)))
        opening.open(frame, out)
        assert out == payload


def test_a_direction_ends_before_its_numbers_do():
    state = CipherState(SECRET)
    state._number = 2**64 - secure.FRAMES_PER_KEY - 1
    assert state.next_nonce() == bytes(4) + b"\xff" * 5 + b"\xfe\xff\xff"
    for _ in range(2):
        with pytest.raises(ProtocolError, match="as many frames as it can"):
            state.next_nonce()


# Key files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "key"


def test_key_files_are_made_once_for_their_owner_only(path):
    assert make_key_file(path)
    for file in (path, server_key_path(path)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = read_server_key(path)
    assert key.for_hosts() == read_host_key(path)
    assert not make_key_file(path)
    assert read_server_key(path).for_hosts() == key.for_hosts()
    assert base64.b64encode(key.private.private_bytes_raw()) not in path.read_bytes()


def test_without_the_workers_key_file_a_new_one_is_made_for_the_same_server(path):
    make_key_file(path)
    earlier = read_host_key(path)
    path.unlink()
    assert make_key_file(path)
    key = read_server_key(path).for_hosts()
    assert key.server == earlier.server
    assert key.secret != earlier.secret


def test_without_the_private_key_the_server_says_where_it_is_and_makes_none(path):
    make_key_file(path)
    server_key_path(path).unlink()
    assert not make_key_file(path)
    with pytest.raises(FileNotFoundError, match=r"no file .*key\.server.*Copy it .*, or delete .*key, let"):
        read_server_key(path)


def test_a_private_key_that_does_not_belong_to_the_key_file_is_refused(path):
    make_key_file(path)
    other = path.with_name("other")
    make_key_file(other)
    server_key_path(path).write_bytes(server_key_path(other).read_bytes())
    with pytest.raises(ValueError, match=r"in .*key\.server does not belong to .*key: delete .*key, let"):
        read_server_key(path)


def test_a_key_file_of_the_earlier_form_is_refused_with_what_to_do(path):
    path.touch(mode=0o600)
    path.write_bytes(base64.b64encode(SECRET) + b"\n")
    with pytest.raises(ValueError, match=r"earlier version of nowait, .*: delete it, let nowait serve"):
        read_host_key(path)


def test_the_private_key_given_to_a_worker_is_refused(path):
    make_key_file(path)
    with pytest.raises(ValueError, match=r"key\.server has the private key of the server: workers need"):
        read_host_key(server_key_path(path))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
@pytest.mark.parametrize("of", [lambda path: path, server_key_path, drain_key_path], ids=["key", "server", "drain"])
def test_a_key_file_that_others_may_use_is_refused(path, of, mode):
    make_key_file(path)
    make_drain_key_file(path)
    of(path).chmod(mode)
    with pytest.raises(ValueError, match=f"has the mode {mode:04o}.*chmod 600"):
        (read_server_key(path), read_drain_key(path))


DAMAGED = [
    b"",
    b"not base64!",
    b"c2hvcnQ=",
    b"A" * 2000,
    b"nowait-workers-key ",
    b"nowait-workers-key AAAA",
    b"A" * 86 + b"==",
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_key_file_is_refused_without_showing_it(path, content):
    make_key_file(path)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a key file, or is damaged") as caught:
        read_host_key(path)
    assert content == b"" or content.decode() not in str(caught.value)


def test_every_shorter_key_file_is_damaged(path):
    make_key_file(path)
    whole = path.read_bytes().strip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is not a key file, or is damaged"):
            read_host_key(path)


def test_a_key_file_that_is_missing_or_a_folder_is_refused(path):
    with pytest.raises(OSError, match="cannot be read"):
        read_host_key(path)
    with pytest.raises((OSError, ValueError), match=r"cannot be read|not a regular file"):
        read_host_key(path.parent)
    with pytest.raises(OSError, match="cannot be made"):
        make_key_file(path.parent / "no folder" / "key")


def test_the_prefix_names_the_protocol_its_version_and_the_mode():
    assert PREFIX.pack(b"nowait", VERSION, 1) == b"nowait\x04\x01"
    for encrypt in (True, False):
        handshake = ClientHandshake(ServerKey.new().for_hosts(), private_key(1), encrypt=encrypt)
        assert handshake.greeting.startswith(PREFIX.pack(b"nowait", VERSION, encrypt))
