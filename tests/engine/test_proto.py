"""The generated code matches the .proto; after edits run ``make generated``."""

import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from engine.proto import engine_report_pb2 as pb

ROOT = Path(__file__).parents[2]


def test_the_generated_code_is_in_step(tmp_path: Path) -> None:
    made = tmp_path / "made"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", f"--descriptor_set_out={made}"]
    subprocess.run([*command, "engine/proto/engine_report.proto"], cwd=ROOT, check=True, timeout=60)
    (wanted,) = FileDescriptorSet.FromString(made.read_bytes()).file
    for descriptor in (wanted, known := FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)):
        for message in descriptor.message_type:
            for field in message.field:
                field.ClearField("json_name")  # written in one of the two forms only
    assert known == wanted, "run: make generated"
