// A client in Java, with the code that protoc and grpc-java's plugin make. See ../test_languages.py.
import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import recsys.v1.DenseInput;
import recsys.v1.Output;
import recsys.v1.PredictRequest;
import recsys.v1.PredictionServiceGrpc;
import recsys.v1.SparseInput;

public final class LanguageClient {
  private interface Write {
    void accept(ByteBuffer out, String number);
  }

  /** Numbers as little-endian bytes. */
  private static ByteString packed(String text, int bytes, Write write) {
    String[] numbers = text.equals("-") ? new String[0] : text.split(",");
    ByteBuffer out = ByteBuffer.allocate(bytes * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
    for (String number : numbers) {
      write.accept(out, number);
    }
    out.flip();
    return ByteString.copyFrom(out);
  }

  private static ByteString floats(String text) {
    return packed(text, 4, (out, number) -> out.putFloat(Float.parseFloat(number)));
  }

  private static String quoted(String text) {
    return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
  }

  private static String answer(PredictionServiceGrpc.PredictionServiceBlockingStub client, PredictRequest request) {
    try {
      List<String> outputs = new ArrayList<>();
      for (Output output : client.withDeadlineAfter(1, TimeUnit.MINUTES).predict(request).getOutputsList()) {
        ByteBuffer data = output.getValues().asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
        List<String> numbers = new ArrayList<>();
        while (data.hasRemaining()) {
          numbers.add(Float.toString(data.getFloat()));
        }
        outputs.add(quoted(output.getName()) + ": [" + String.join(", ", numbers) + "]");
      }
      return "{\"outputs\": {" + String.join(", ", outputs) + "}}";
    } catch (StatusRuntimeException error) {
      return "{\"code\": " + error.getStatus().getCode().value() + ", \"message\": "
          + quoted(error.getStatus().getDescription()) + "}";
    }
  }

  public static void main(String[] args) throws Exception {
    ManagedChannel channel = NettyChannelBuilder.forTarget(args[0]).usePlaintext().build();
    PredictionServiceGrpc.PredictionServiceBlockingStub client = PredictionServiceGrpc.newBlockingStub(channel);
    PredictRequest.Builder request = PredictRequest.newBuilder();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] words = line.split(" ");
      switch (words[0]) {
        case "rows":
          request.setNumRows(Integer.parseInt(words[1]));
          break;
        case "dense":
          request.addDense(DenseInput.newBuilder().setName(words[1]).setValues(floats(words[2])));
          break;
        case "ids":
          request.addSparse(
              SparseInput.newBuilder()
                  .setName(words[1])
                  .setLengths(packed(words[2], 4, (out, number) -> out.putInt(Integer.parseInt(number))))
                  .setValues(packed(words[3], 8, (out, number) -> out.putLong(Long.parseLong(number))))
                  .setWeights(floats(words[4])));
          break;
        default:
          System.out.println(answer(client, request.build()));
          request.clear();
      }
    }
    channel.shutdownNow().awaitTermination(1, TimeUnit.MINUTES);
  }
}
