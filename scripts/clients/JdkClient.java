import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;

/** The JDK's HTTP client as it comes: it offers h2c on every request to a plain http address. */
class JdkClient {
    static final String CHAT = "{\"model\":\"m\",%s\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";

    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        URI chat = URI.create(arguments[0] + "/chat/completions");
        for (int round = 0; round < 3; round++) {
            HttpResponse<String> whole = client.send(post(chat, CHAT.formatted("")), BodyHandlers.ofString());
            expect(whole.statusCode() == 200 && whole.body().contains("w0 w1 w2 w3 w4"), whole.body());
            expect(whole.version() == HttpClient.Version.HTTP_1_1, "spoke " + whole.version());
            expect(whole.headers().firstValue("x-request-id").isPresent(), "no request id");
        }
        List<String> lines = client.send(post(chat, CHAT.formatted("\"stream\":true,")), BodyHandlers.ofLines())
                .body().toList();
        expect(lines.contains("data: [DONE]"), String.join("\n", lines));
        HttpRequest chunked = HttpRequest.newBuilder(chat).header("content-type", "application/json")
                .POST(BodyPublishers.fromPublisher(BodyPublishers.ofString(CHAT.formatted("")))).build();
        expect(client.send(chunked, BodyHandlers.ofString()).statusCode() == 200, "a chunked body");
        HttpResponse<String> models = client.send(
                HttpRequest.newBuilder(URI.create(arguments[0] + "/models")).build(), BodyHandlers.ofString());
        expect(models.body().contains("\"team/m:8b\""), models.body());
        System.out.println("JDK " + Runtime.version().feature() + " HttpClient: whole, streamed, chunked, listed");
    }

    static HttpRequest post(URI uri, String body) {
        return HttpRequest.newBuilder(uri).header("content-type", "application/json")
                .POST(BodyPublishers.ofString(body)).build();
    }

    static void expect(boolean isSo, String what) {
        if (!isSo) {
            throw new AssertionError(what);
        }
    }
}
